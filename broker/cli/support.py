"""`twinwire support-bundle`: collects data for a problem report in one archive, without secrets.

It works whether the broker runs or not: what cannot be had is listed in `missing.txt`. Message
bodies are never read. Every file passes `Secrets`, which knows the secrets of the configuration.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import io
import os
import platform
import re
import socket
import sys
import tarfile
import time
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import orjson

from broker import __version__
from broker.base.lockfile import LOCK_NAME
from broker.base.redact import HIDDEN, redacted
from broker.base.settings import Address, parse_address
from broker.cli.config import in_force
from broker.cli.health import Probe
from broker.config.config import Config
from broker.config.load import PREFIX, ConfigError, load_with_origins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE_BYTES_MAX: Final = 16 << 20
LOG_BYTES_MAX: Final = 8 << 20  # of the end of each log file
ENTRIES_MAX: Final = 200_000  # of the data folder
SECRET_CHARS_MIN: Final = 4  # shorter ones would hide parts of ordinary words
_TIMEOUT_S: Final = 5.0
_MONITOR: Final = (
    "healthz", "varz", "connz", "subsz", "accountz", "accstatz", "leafz", "metrics",
    "streaming/serverz", "streaming/storez", "streaming/channelsz",
    "jsz?accounts=true&streams=true&consumers=true",
)  # fmt: skip
# Requests for a console without users; their answers have no message bodies.
_CONSOLE: Final = ("v1/overview", "v1/readers", "v1/logs?level=debug&limit=1000")
_NSQ: Final = ("ping", "info", "stats?format=json")
_URL_LOGIN: Final = re.compile(r"://([^\s/?#@\"']*)@")
# Values of secret keys in files that the configuration names: tokens, passwords, seeds.
_KEYED: Final = re.compile(
    r"(?i)\b(?:pass(?:word)?|token|secret|seed|nkey_seed|user_jwt|jwt|xkey)\b[\"']?\s*[:= ]\s*"
    r"[\"']?([^\s\"',;{}]+)"
)
_LIMITS: Final = ("limits", "status", "io")


class Secrets:
    """Removes the secrets of a configuration, and texts that look like secrets."""

    def __init__(self, config: Config, file: Path | None) -> None:
        """`file`: also remove secrets in it that are overridden or invalid."""
        source = _content(str(file or ""))
        found = {value for _, value in _hidden(config)}
        names = {key for key, _ in _hidden(config)}
        variables = {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}
        for name, text in variables.items():
            if any(name.endswith(f"_{key.upper()}") for key in names):
                found.add(text)
        found.update(_KEYED.findall(source))
        for login in _URL_LOGIN.findall("\n".join((source, *variables.values()))):
            found |= _of_login(login)
        found.update(self._in_files(config))
        words = [one for one in found if len(one) >= SECRET_CHARS_MIN]
        words.sort(key=len, reverse=True)  # one may contain another
        self._known = re.compile("|".join(map(re.escape, words))) if words else None

    @staticmethod
    def _in_files(config: Config) -> Iterator[str]:
        for line in _content(config.bulk.token_file).splitlines():
            yield from line.split()[1:2]  # NAME TOKEN RIGHTS
        text = _content(config.nats.config_file)
        yield from _KEYED.findall(text)
        for login in _URL_LOGIN.findall(text):
            yield from _of_login(login)
        for file in (config.console.users_file, config.console.token_file):
            for line in _content(file).splitlines():
                yield from line.split()[2:3]  # NAME ROLE HASH, NAME ROLE TOKEN

    def hide(self, text: str) -> str:
        """The text without secrets."""
        text = redacted(text)
        return text if self._known is None else self._known.sub(HIDDEN, text)


def _of_login(login: str) -> set[str]:
    """The secrets in USER:PASSWORD or TOKEN of a URL."""
    return {login, login.partition(":")[2]}


def _hidden(config: Config) -> Iterator[tuple[str, str]]:
    """Key and value of the secret settings."""
    for _, section in config.sections():
        for each in fields(section):
            if not each.repr and "kind" in each.metadata:
                value = getattr(section, each.name)
                for text in value if isinstance(value, tuple) else (value,):
                    yield each.name, str(text)
                    yield each.name, str(text).partition("=")[2]


def _content(file: str) -> str:
    """The text of a file that the configuration names; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(file).read_text("utf-8", "replace") if file else ""
    return ""


class Bundle:
    """The archive, while it is written."""

    def __init__(self, archive: tarfile.TarFile, folder: str, secrets: Secrets) -> None:
        self._archive = archive
        self._folder = folder
        self._secrets = secrets
        self._missing: list[str] = []

    def add(self, name: str, text: str) -> None:
        """Add a file, without secrets."""
        data = self._secrets.hide(text).encode("utf-8", "surrogateescape")
        entry = tarfile.TarInfo(f"{self._folder}/{name}")
        entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
        self._archive.addfile(entry, io.BytesIO(data))

    def record_missing(self, name: str, reason: object) -> None:
        """Note that something is missing."""
        self._missing.append(f"{name}: {reason}")

    def finish(self) -> int:
        """Add the list of what is missing. Returns its length."""
        self.add("missing.txt", "\n".join((*self._missing, "")))
        return len(self._missing)


def versions() -> str:
    """Versions of the program, its libraries and the system."""
    lines = [
        f"twinwire {__version__}",
        f"python {sys.version}",
        f"system {platform.platform()}",
        f"libc {' '.join(platform.libc_ver())}",
        f"cpus {os.cpu_count()}",
        f"time {datetime.now(UTC).isoformat(timespec='seconds')}",
    ]
    with contextlib.suppress(OSError):
        lines += Path("/proc/meminfo").read_text().splitlines()[:3]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for text in importlib.metadata.requires("twinwire") or ():
            name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                lines.append(f"package {name} {importlib.metadata.version(name)}")
    return "\n".join((*dict.fromkeys(lines), ""))


def listing(folder: Path) -> Iterator[str]:
    """Files below a folder, each with mode, bytes and time of the last change. No content."""
    count = 0
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in [".", *sorted(files)]:
            path = Path(parent) / name
            try:
                found = path.lstat()
            except OSError as error:
                yield f"{path.relative_to(folder)}: {error.strerror}"
                continue
            changed = datetime.fromtimestamp(found.st_mtime, UTC)
            yield (
                f"{found.st_mode:o} {found.st_size:>12} {changed:%Y-%m-%dT%H:%M:%SZ}"
                f" {path.relative_to(folder)}{'/' if name == '.' else ''}"
            )
            count += 1
            if count >= ENTRIES_MAX:
                yield f"... more than {ENTRIES_MAX} entries"
                return


def pages(config: Config, ports: dict[str, str]) -> Iterator[tuple[str, Probe]]:
    """For each page that the broker may serve: its name in the archive, and the request."""
    monitor = config.monitor
    login = f"{monitor.user}:{monitor.password}" if monitor.user else ""
    asked = (
        ("monitor", monitor.listen and Address(*monitor.listen), _MONITOR, login),
        ("nsq_http", config.nsq.http, _NSQ, ""),
        ("console", None if config.console.tls_cert else config.console.listen, _CONSOLE, ""),
    )
    for listener, configured, paths, user in asked:
        address = parse_address(ports[listener]) if listener in ports else configured
        if address is not None:
            for path in paths:
                name = path.partition("?")[0].removeprefix("v1/").replace("/", "-")
                yield f"pages/{listener}-{name}.txt", Probe(address, f"/{path}", user)


def tail(path: Path) -> str:
    """The end of a file, from the beginning of a line. OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - LOG_BYTES_MAX, 0))
        data = file.read(LOG_BYTES_MAX)
    if size > LOG_BYTES_MAX:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")


def collect(bundle: Bundle, config: Config, ports: dict[str, str], logs: Iterable[Path]) -> None:
    """Add everything that depends on the configuration."""
    data = Path(config.server.data)
    bundle.add("data.txt", "\n".join((*listing(data), "")))
    try:
        pid = (data / LOCK_NAME).read_text().strip()
    except OSError as error:
        bundle.record_missing("process", f"{error.strerror}: {data / LOCK_NAME} (server.data)")
    else:
        for name in _LIMITS if pid else ():
            try:
                bundle.add(f"process/{name}.txt", Path(f"/proc/{int(pid)}/{name}").read_text())
            except (OSError, ValueError) as error:
                bundle.record_missing(f"process/{name}.txt", error)
        if not pid:
            bundle.record_missing("process", "no broker uses the data folder")
    for name, probe in pages(config, ports):
        try:
            status, text = probe.ask(_TIMEOUT_S, PAGE_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            bundle.record_missing(name, f"{probe.address}: {reason}")
            continue
        if status == http.client.UNAUTHORIZED:
            bundle.record_missing(name, f"{probe.address} wants a login")
            continue
        bundle.add(name, text if status == http.client.OK else f"HTTP {status}\n{text}")
    for number, path in enumerate(logs):
        try:
            bundle.add(f"logs/{number}-{path.name}", tail(path))
        except OSError as error:
            bundle.record_missing(f"log {path}", error)


def read_ports(path: Path | None) -> dict[str, str]:
    """The addresses in a ports file. click.UsageError."""
    if path is None:
        return {}
    try:
        found: dict[str, str] = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path}: {error}") from None
    return found


@click.command("support-bundle")
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file, as for serve."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
    help="Archive to create.  [default: twinwire-support-HOST-TIME.tar.gz]",
)  # fmt: skip
@click.option(
    "--log", "logs", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
    help="Log file whose end is added; may be repeated.",
)  # fmt: skip
@click.option(
    "--ports-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Addresses of the broker, as `serve --ports-file` writes them.",
)  # fmt: skip
def support_bundle(
    file: Path | None, output: Path | None, logs: tuple[Path, ...], ports_file: Path | None
) -> None:
    """Write what a report of a problem needs into one archive: settings, versions, statistics,
    logs and the names and sizes of the data files.

    It has no secrets and no message bodies, but names of topics, subjects, users and addresses:
    look at it before you pass it on. The broker may run or not.
    """
    ports = read_ports(ports_file)
    try:
        config, given = load_with_origins(file, os.environ)
        settings = in_force(given)
    except ConfigError as error:
        config, settings = Config(), f"{error}\n"
    named = f"twinwire-support-{socket.gethostname()}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    path = output or Path(f"{named}.tar.gz")
    secrets = Secrets(config, file)
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    try:
        with os.fdopen(made, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            bundle = Bundle(archive, named, secrets)
            bundle.add("versions.txt", versions())
            bundle.add("config.txt", settings)
            variables = sorted(name for name in os.environ if name.startswith(PREFIX))
            bundle.add("environment.txt", "\n".join((*variables, "")))
            collect(bundle, config, ports, logs)
            missing = bundle.finish()
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise click.ClickException(f"{path}: {error}") from None
        raise
    click.echo(str(path))
    if missing:
        click.echo(
            f"{missing} parts are not there, missing.txt says why. Of a broker that runs: give the"
            " -c and the environment of `twinwire serve`, or its --ports-file",
            err=True,
        )
