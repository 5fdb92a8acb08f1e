"""`twinwire top`: the topics of a broker in the terminal, from the API of the web console.

`Api` asks, `Table` makes lines of the answers, `Screen` is the terminal. What a broker sends is
printed without control characters, so no name can move the cursor.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlencode, urlsplit

import click
import orjson

from broker.base.settings import parse_address
from broker.cli.health import reachable
from broker.cli.tools.topics import print_error
from broker.client.tls import client_context
from broker.config.load import ConfigError, load
from broker.server import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Json = dict[str, Any]

ROWS_MAX: Final = 200  # of one page of the API
ROWS_PRINTED: Final = 50  # by --once
ATTENTION_LINES: Final = 3
NAME_CHARS_MIN: Final = 12
_TIMEOUT_S: Final = 10.0
_BODY_BYTES_MAX: Final = 16 << 20
_ALTERNATE: Final = "\x1b[?1049h\x1b[?25l"  # a screen of its own, without the cursor
_NORMAL: Final = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _INVERSE, _PLAIN = "\x1b[1m", "\x1b[7m", "\x1b[0m"
_KEYS: Final = {"\x1b[A": "k", "\x1b[B": "j", "\x1b[5~": "K", "\x1b[6~": "J", "\x03": "q"}
_ESCAPE, _ENTER, _ERASE = "\x1b", ("\r", "\n"), ("\x7f", "\x08")
HELP: Final = "s order  r reverse  n not empty  / filter  j k scroll  q quit"


class TopError(Exception):
    """The broker cannot be asked; the text says why."""


# --- the API -------------------------------------------------------------------------------------


class Api:
    """The console of one broker."""

    def __init__(self, url: str, token: str, ca: Path | None) -> None:
        """UsageError: `url` is not the address of a console."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        self.url = f"{parts.scheme}://{parts.netloc}"
        try:
            address = parse_address(parts.netloc)
        except ValueError as error:
            raise click.UsageError(f"{error}; expected http://HOST:PORT") from None
        if parts.scheme not in ("http", "https"):
            raise click.UsageError(f"invalid URL {url!r}: expected http://HOST:PORT")
        self._address, self._tls = address, None
        if parts.scheme == "https":
            try:
                self._tls = client_context(
                    None if ca is None else str(ca), None, None, insecure=False
                )
            except OSError as error:
                raise click.UsageError(f"{ca}: {error.strerror or error}") from None
        self._headers: dict[str, bytes] = {}
        if token:
            self._headers["Authorization"] = b"Bearer " + token.encode("utf-8", "surrogateescape")
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, **query: object) -> Json:
        """The answer of one request. TopError."""
        asked = {key: value for key, value in query.items() if value not in (None, "")}
        was_open = self._connection is not None
        try:
            try:
                return self._get(f"{path}?{urlencode(asked)}")
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                # An idle connection is closed by the broker, or ended with the one before.
                if not was_open:
                    raise
                self.close()
                return self._get(f"{path}?{urlencode(asked)}")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise TopError(f"{self.url} does not answer: {reason}") from None

    def _get(self, target: str) -> Json:
        if self._connection is None:
            host, port = self._address
            if self._tls is not None:
                self._connection = http.client.HTTPSConnection(
                    host, port, timeout=_TIMEOUT_S, context=self._tls
                )
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        self._connection.request("GET", target, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read(_BODY_BYTES_MAX)
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise TopError(f"{self.url} is not the web console of a broker")
        if response.status == http.HTTPStatus.UNAUTHORIZED:
            if "Authorization" in self._headers:
                raise TopError(f"{self.url} does not know the token of --token-file")
            raise TopError(f"{self.url} needs a token: give --token-file")
        if response.status != http.HTTPStatus.OK:
            raise TopError(f"{self.url}: {found.get('message', response.status)}")
        return found


# --- lines ---------------------------------------------------------------------------------------


def clean(text: object) -> str:
    """A text without characters that a terminal would interpret."""
    return "".join(char if char.isprintable() else "?" for char in str(text))


def number(value: float | None) -> str:
    """With a comma for each thousand, and a decimal for what is small."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if value % 1 and value < 100 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes with their unit."""
    if value is None:
        return "-"
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:,.0f} B" if units[0] == "B" else f"{value:,.1f} {units[0]}"


def span(seconds: int) -> str:
    """A duration in its two largest units."""
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s"))
    first = next((at for at, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])


class Column:
    """A number of each topic."""

    def __init__(self, key: str, title: str, width: int, text: Callable[[Any], str] = number):
        self.key, self.title, self.width, self.text = key, title, width, text


# In the order in which they are left out of a narrow terminal: the last ones first.
COLUMNS: Final = (
    Column("depth", "DEPTH", 11),
    Column("in_rate", "IN/S", 9),
    Column("out_rate", "OUT/S", 9),
    Column("in_flight", "IN FLIGHT", 10),
    Column("bytes", "SIZE", 11, size),
    Column("consumers", "CONSUMERS", 10),
    Column("channels", "CHANNELS", 9),
    Column("deferred", "DEFERRED", 10),
    Column("messages", "MESSAGES", 15),
)
SORTS: Final = ("name", *(column.key for column in COLUMNS))


class Selection:
    """Which topics are shown."""

    def __init__(self, sort: str, text: str, *, non_empty: bool) -> None:
        self.sort, self.text, self.non_empty, self.offset = sort, text, non_empty, 0

    def next_sort(self) -> None:
        """Sort by the next column: numbers fall, names rise."""
        at = (SORTS.index(self.sort.removeprefix("-")) + 1) % len(SORTS)
        self.sort = SORTS[at] if SORTS[at] == "name" else f"-{SORTS[at]}"

    def reverse(self) -> None:
        """Turn the order round."""
        self.sort = self.sort[1:] if self.sort.startswith("-") else f"-{self.sort}"

    def query(self, rows: int) -> Json:
        """The arguments of /v1/topics."""
        return {
            "sort": self.sort,
            "filter": self.text,
            "non_empty": "true" if self.non_empty else None,
            "offset": self.offset,
            "limit": max(1, min(rows, ROWS_MAX)),
        }


def head(overview: Json, width: int) -> list[str]:
    """The lines about the broker as a whole."""
    server, topics, rates = overview["server"], overview["topics"], overview["rates"]
    health = "healthy" if overview["health"]["ok"] else "NOT HEALTHY"
    disk, process = overview["disk"], overview["process"]
    version, up = clean(server["version"]), span(server["uptime_s"])
    traffic = (
        f"in {number(rates['in_msgs'])} msg/s {size(rates['in_bytes'])}/s",
        f"out {number(rates['out_msgs'])} msg/s {size(rates['out_bytes'])}/s",
        f"depth {number(topics['depth'])}",
        f"in flight {number(topics['in_flight'])}",
    )
    resources = (
        f"{number(topics['count'])} topics",
        f"stored {size(topics['bytes'])}",
        *((f"disk {size(disk['free_bytes'])} free",) if disk else ()),
        f"memory {size(process['memory_bytes'])}",
        f"cpu {number(process['cpu_percent'])} %",
    )
    lines = [f"{clean(server['name'])}  Twinwire {version}, up {up}, {health}"]
    lines += ["   ".join(traffic), "   ".join(resources)]
    findings = overview["attention"]
    lines += [f"! {clean(one['text'])}" for one in findings[:ATTENTION_LINES]]
    if len(findings) > ATTENTION_LINES:
        lines.append(f"! and {len(findings) - ATTENTION_LINES} more in the console")
    return [line[:width] for line in lines]


def columns_of(width: int) -> tuple[Column, ...]:
    """The columns for which there is room, beside the name."""
    left, found = width - NAME_CHARS_MIN, []
    for column in COLUMNS:
        left -= column.width
        if left < 0:
            break
        found.append(column)
    return tuple(found)


def table(rows: Iterable[Json], sort: str, width: int) -> list[str]:
    """The title line and a line for each topic."""
    columns = columns_of(width)
    name_width = width - sum(column.width for column in columns)
    mark = "v" if sort.startswith("-") else "^"
    key = sort.removeprefix("-")

    def title(text: str, name: str) -> str:
        return f"{text}{mark}" if name == key else text

    lines = [
        title("TOPIC", "name").ljust(name_width)
        + "".join(title(one.title, one.key).rjust(one.width) for one in columns)
    ]
    for row in rows:
        name = clean(row["name"]) + (" (paused)" if row["paused"] else "")
        if len(name) >= name_width:
            name = f"{name[: name_width - 2]}~"
        cells = "".join(one.text(row[one.key]).rjust(one.width) for one in columns)
        lines.append(f"{name.ljust(name_width)}{cells}"[:width])
    return lines


def foot(page: Json, selection: Selection, width: int) -> str:
    """Which topics of how many are shown, and the keys."""
    shown, matched = len(page["topics"]), page["matched"]
    first = page["offset"] + 1 if shown else 0
    which = f"{first}-{page['offset'] + shown} of {number(matched)}"
    if selection.text:
        which += f" with {clean(selection.text)!r}"
    if selection.non_empty:
        which += ", not empty"
    return f"{which}   {HELP}"[:width]


# --- the terminal --------------------------------------------------------------------------------


class Screen:
    """The terminal while `top` draws on it; the state before is restored at the end."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)
        sys.stdout.write(_ALTERNATE)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.write(_NORMAL)
        sys.stdout.flush()
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    @staticmethod
    def size() -> tuple[int, int]:
        """Columns and lines."""
        found = shutil.get_terminal_size()
        return max(20, found.columns), max(8, found.lines)

    @staticmethod
    def draw(lines: list[str]) -> None:
        """Replace what is shown."""
        text = "".join(f"{line}{_CLEAR_LINE}\r\n" for line in lines[:-1])
        sys.stdout.write(f"{_HOME}{text}{lines[-1]}{_CLEAR_LINE}{_CLEAR_REST}")
        sys.stdout.flush()

    def key(self, wait_s: float) -> str:
        """The next key; empty: none came in time."""
        ready, _, _ = select.select([self._input], [], [], max(0.0, wait_s))
        if not ready:
            return ""
        text = os.read(self._input, 64).decode("utf-8", "replace")
        return _KEYS.get(text, text)


class Session:
    """Asks the broker again and again, and does what keys say."""

    def __init__(self, api: Api, selection: Selection, interval_s: float, screen: Screen) -> None:
        self.api, self.selection, self.screen = api, selection, screen
        self.interval_s = interval_s
        self.overview: Json = {}
        self.page: Json = {"topics": [], "matched": 0, "offset": 0}
        self.problem = ""
        self._typed: str | None = None  # the filter while it is typed
        self._interrupted = False

    def interrupt(self, *_: object) -> None:
        """Handle ctrl-C. An exception that is raised while an object is destroyed, a response that
        has been read for example, is lost: then `run` ends at its next turn."""
        self._interrupted = True
        raise KeyboardInterrupt

    def run(self) -> None:
        """Until q or ctrl-C. TopError: the broker does not answer the first time."""
        due = 0.0
        while not self._interrupted:
            if time.monotonic() >= due:
                self._ask()
                due = time.monotonic() + self.interval_s
            self._draw()
            key = self.screen.key(due - time.monotonic())
            if not key:
                continue
            if self._typed is not None:
                self._type(key)
            elif not self._press(key):
                return
            due = 0.0

    def _rows(self) -> int:
        width, height = self.screen.size()
        return max(1, height - len(head(self.overview, width)) - 3)

    def _ask(self) -> None:
        try:
            self.overview = self.api.get("/v1/overview")
            self.page = self.api.get("/v1/topics", **self.selection.query(self._rows()))
        except TopError as error:
            if not self.overview:
                raise
            self.problem = f"{error}; trying again"
        else:
            self.problem = ""

    def _draw(self) -> None:
        width, height = self.screen.size()
        first, *rest = head(self.overview, width)
        title, *rows = table(self.page["topics"], self.selection.sort, width)
        bottom = foot(self.page, self.selection, width)
        if self.problem:
            bottom = f"{_INVERSE}{clean(self.problem)[:width]}{_PLAIN}"
        if self._typed is not None:
            bottom = f"Filter: {clean(self._typed)}_"[:width]
        above = [f"{_BOLD}{first}{_PLAIN}", *rest, "", f"{_INVERSE}{title}{_PLAIN}"]
        body = [*above, *rows][: height - 1]
        self.screen.draw([*body, *[""] * (height - 1 - len(body)), bottom])

    def _type(self, text: str) -> None:
        for key in text if text != _ESCAPE else (_ESCAPE,):
            if key in _ENTER:
                self.selection.text, self.selection.offset = self._typed or "", 0
                self._typed = None
                return
            if key == _ESCAPE:
                self._typed = None
                return
            self._typed = (self._typed or "")[:-1] if key in _ERASE else f"{self._typed}{key}"

    def _press(self, key: str) -> bool:
        """Whether to go on."""
        rows, selection = self._rows(), self.selection
        steps = {"j": 1, "k": -1, "J": rows, " ": rows, "K": -rows}
        if key == "q":
            return False
        if key in steps:
            last = max(0, self.page["matched"] - rows)
            selection.offset = max(0, min(selection.offset + steps[key], last))
        elif key == "s":
            selection.next_sort()
        elif key == "r":
            selection.reverse()
        elif key == "n":
            selection.non_empty, selection.offset = not selection.non_empty, 0
        elif key == "/":
            self._typed = ""
        return True


def token_of(path: Path) -> str:
    """The first token of the file: the last word of its line. UsageError: it has none."""
    for line in path.read_text("utf-8", "surrogateescape").splitlines():
        words = line.split()
        if words and not words[0].startswith("#"):
            return words[-1]
    raise click.UsageError(f"{path} has no token")


def url_of(file: Path | None) -> str:
    """The address of the console in the configuration. UsageError: it is off."""
    try:
        config = load(file, os.environ).console
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    if config.listen is None:
        raise click.UsageError("[console] listen is empty: give the URL of a console")
    return f"{'https' if config.tls_cert else 'http'}://{reachable(config.listen)}"


@click.command("top")
@click.argument("url", required=False)
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file, as for serve."
)
@click.option(
    "--token-file", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with a token: alone, or as a line of the console's token_file.",
)  # fmt: skip
@click.option(
    "--ca", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Certificates that an https console is verified with, instead of the system's.",
)  # fmt: skip
@click.option(
    "--sort", type=click.Choice(SORTS), default="depth", show_default=True,
    help="Order; numbers fall.",
)  # fmt: skip
@click.option("--filter", "text", default="", help="Show only topics whose name contains this.")
@click.option("--non-empty", is_flag=True, help="Show only topics in which messages wait.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(1.0), default=2.0, show_default=True,
    help="Seconds between two requests.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and end, as if stdout is not a terminal.")
def top(
    url: str | None,
    file: Path | None,
    token_file: Path | None,
    ca: Path | None,
    sort: str,
    text: str,
    non_empty: bool,
    interval_s: float,
    once: bool,
) -> None:
    """Show the topics of a broker with their rates and depths, like top.

    The broker is found by the configuration that `serve` would read, or by the URL of its console.
    Keys: s sorts by the next column, r reverses, n hides empty topics, / filters, q ends.
    """
    api = Api(url or url_of(file), "" if token_file is None else token_of(token_file), ca)
    selection = Selection(sort if sort == "name" else f"-{sort}", text, non_empty=non_empty)
    try:
        if once or not sys.stdout.isatty() or not sys.stdin.isatty():
            print_once(api, selection)
        else:
            with Screen() as screen, contextlib.suppress(KeyboardInterrupt):
                session = Session(api, selection, interval_s, screen)
                signal.signal(signal.SIGINT, session.interrupt)
                session.run()
    except TopError as error:
        print_error(clean(error))
        sys.exit(1)
    finally:
        api.close()


def print_once(api: Api, selection: Selection) -> None:
    """One picture as lines, with rates of the second before. TopError."""
    width = max(80, shutil.get_terminal_size().columns)
    query = selection.query(ROWS_PRINTED)
    for wait_s in (1.1, 0.0):  # the first answer has no rates yet
        overview, page = api.get("/v1/overview"), api.get("/v1/topics", **query)
        time.sleep(wait_s)
    lines = [*head(overview, width), "", *table(page["topics"], selection.sort, width)]
    if page["matched"] > len(page["topics"]):
        lines.append(f"{number(page['matched'] - len(page['topics']))} more")
    click.echo("\n".join(lines))
