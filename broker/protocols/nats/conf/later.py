"""Keys of nats-server's configuration that came after 2.10 and are not available here.

They are unknown, but they are no typing mistakes, and the error says so. A key that a reader
learns to read needs no change here.
"""

from __future__ import annotations

from typing import Final

_TLS: Final = {"allow_insecure_cipher_suites": "2.12", "ca_certs_match": "2.11"}
_TIMES: Final = {"write_deadline": "2.14", "write_timeout": "2.14"}
_ISOLATION: Final = {"isolate_leafnode_interest": "2.12", "isolate": "2.12"}
_PROXY: Final = {"proxy_required": "2.12"}
# By the block's name in messages: key -> the first release that has it.
_KEYS: Final = {
    "the configuration": {
        "default_sentinel": "2.11",
        "feature_flags": "2.14",
        "no_fast_producer_stall": "2.11",
        "proxies": "2.12",
        "proxy_protocol": "2.14",
        "server_metadata": "2.12",
        "trace_headers": "2.11",
        "write_timeout": "2.14",
    },
    "authorization": _PROXY,
    "a user": _PROXY,
    "auth_callout": {"allowed_accounts": "2.11"},
    "tls": _TLS,
    "websocket": {
        "headers": "2.11",
        "pass_cookie": "2.11",
        "ping_interval": "2.14",
        "token_cookie": "2.11",
        "user_cookie": "2.11",
    },
    "leafnodes": {**_TIMES, **_ISOLATION, "dial_timeout": "2.14"},
    "a remote": {
        **_ISOLATION,
        "dial_timeout": "2.14",
        "disabled": "2.12",
        "first_info_timeout": "2.11",
        "ignore_discovered_servers": "2.14",
        "proxy": "2.14",
        "request_isolation": "2.12",
    },
    "cluster": {**_TIMES, "connect_backoff": "2.12"},
    "gateway": {**_TIMES, "connect_backoff": "2.12"},
    "mqtt": {"api_timeout": "2.11", "js_api_timeout": "2.11"},
}


def remark(block: str, key: str) -> str:
    """What an error about an unknown key adds if a later nats-server has it; empty if none has."""
    kind = "account" if block.startswith("account ") else block
    release = _KEYS.get(kind, {}).get(key.lower())
    if release is None:
        return ""
    return f": a key of nats-server {release} and later, which is not available here"
