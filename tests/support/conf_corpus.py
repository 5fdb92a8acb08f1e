"""The corpus of configurations: its files, its keys and tokens, and nats-server's results."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.settings import ORIGINAL, Settings
from support.authority import Authority

FOLDER = Path(__file__).parents[1] / "unit" / "protocols" / "nats" / "conf"
ENVIRONMENT = {"NATS_PORT": "4333", "NATS_SIZE": "2mb", "HOME": "/nowhere"}
_PAIR = {kind: nkeys.KeyPair(kind, bytes(32)) for kind in (nkeys.ACCOUNT, nkeys.USER)}
_OPERATOR = nkeys.KeyPair(nkeys.OPERATOR, bytes(32))


def _token(kind: str, **body: Any) -> str:
    claims = {"sub": _OPERATOR.public, "iat": 1}
    return tokens.encode(_OPERATOR, claims, body, kind)


KEYS = {
    "ACCOUNT": _PAIR[nkeys.ACCOUNT].public,
    "OTHER_ACCOUNT": nkeys.KeyPair(nkeys.ACCOUNT, b"1" * 32).public,
    "USER": _PAIR[nkeys.USER].public,
    "OPERATOR": _OPERATOR.public,
    "CURVE": nkeys.CurvePair(b"1" * 32).public,
    "SEED": _PAIR[nkeys.USER].seed,
    "ACCOUNT_TOKEN": _token("account"),
    "OPERATOR_TOKEN": _token("operator"),
    "SYSTEM_TOKEN": _token("operator", system_account=_PAIR[nkeys.ACCOUNT].public),
    "URL_TOKEN": _token("operator", account_server_url="http://127.0.0.1:9090/jwt/v1"),
    "BEARER_TOKEN": tokens.encode(
        _PAIR[nkeys.ACCOUNT],
        {"sub": _PAIR[nkeys.USER].public, "iat": 1},
        {"bearer_token": True},
        "user",
    ),
    "FUTURE_TOKEN": _token("operator", assert_server_version="9.0.0"),
}
_FORGED = KEYS["OPERATOR_TOKEN"].rpartition(".")
KEYS["FORGED_TOKEN"] = f"{_FORGED[0]}.{nkeys.to_base64(bytes(64))}"


class Case(NamedTuple):
    """One configuration of the corpus."""

    title: str
    text: str
    original: str  # what is said of the original server, if it does not do the same
    expected: list[tuple[str, str]]  # mark and text


def cases(name: str) -> Iterator[Case]:
    """Those of a file."""
    text = (FOLDER / f"{name}.txt").read_text().partition("\n==")[2]
    for part in text.split("\n=="):
        title, _, rest = part.partition("\n")
        lines, expected, original = list[str](), list[tuple[str, str]](), ""
        for line in rest.splitlines():
            mark, _, what = line.partition(" ")
            if mark in (">>", "??", "!!", "=>"):
                expected.append((mark, with_keys(what)))
            elif mark == "original:":
                original = what
            else:
                lines.append(with_keys(line))
        yield Case(title.strip(), "\n".join(lines).rstrip("\n") + "\n", original, expected)


def with_keys(text: str) -> str:
    for name, key in KEYS.items():
        text = text.replace(f"@{name}@", key)
    return text


def make_files(folder: Path) -> None:
    """What the configurations name."""
    authority = Authority(folder)
    pairs = authority.issue("cert"), authority.issue("another")
    for name, file in (
        ("ca.pem", authority.file),
        ("key.pem", pairs[0].key),
        ("other.pem", pairs[1].key),
    ):
        (folder / name).write_bytes(file.read_bytes())
    (folder / "op.jwt").write_text(
        f"-----BEGIN TRUSTED OPERATOR JWT-----\n{KEYS['OPERATOR_TOKEN']}\n"
        "------END TRUSTED OPERATOR JWT------\n"
    )


def shown(it: Any) -> Any:
    """Settings as JSON: values of dataclasses that are not the default; secrets too."""
    if dataclasses.is_dataclass(it) and not isinstance(it, type):
        return {
            f.name: shown(value)
            for f in dataclasses.fields(it)
            if f.compare
            if (value := getattr(it, f.name)) != f.default or f.default is dataclasses.MISSING
        }
    if isinstance(it, frozenset):
        return sorted(it)
    return [shown(one) for one in it] if isinstance(it, tuple) else it


def changed(settings: Settings) -> dict[str, Any]:
    """What differs from nats-server without a file."""
    found: dict[str, Any] = shown(settings) | {"listen": shown(settings.listen)}
    if settings.listen == ORIGINAL.listen:
        del found["listen"]
    return found


class Original:
    """The original server, which checks files."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.file = folder / "x.conf"

    def run(self, text: str, *arguments: str, timeout: float) -> tuple[int | None, str]:
        """Exit code, None if it had to be stopped; its output."""
        self.file.write_bytes(text.encode("utf-8", "surrogateescape"))
        command = [self.program, "-c", self.file.name, *arguments]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                output = process.communicate(timeout=timeout)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                return None, process.communicate()[0]
            return process.returncode, output

    def checks(self, text: str) -> tuple[bool, str]:
        """Whether -t finds it right."""
        code, output = self.run(text, "-t", timeout=10)
        return code == 0, output

    def starts(self, text: str) -> tuple[bool, str]:
        """Whether a server runs with it."""
        port = () if text.startswith("port:") else ("-p", "-1")
        code, output = self.run(text, "-a", "127.0.0.1", *port, timeout=3)
        return code is None, output
