"""The options of each request, as in the original's structs."""

from __future__ import annotations

from typing import Final

from broker.protocols.nats.system.go_json import Shape


def _shape(name: str, fields: dict[str, str], group: str = "") -> Shape:
    return Shape(f"{name}EventOptions", group or f"{name}Options", fields)


_BOOL, _INT, _STRING = "bool", "int", "string"

STATSZ: Final = Shape("StatszEventOptions")
INFO: Final = Shape("AccInfoEventOptions")
FILTERS_ONLY: Final = Shape("EventFilterOptions", filters="")
CLIENT_ID: Final = {"KICK": Shape("KickClientReq", "", {"cid": "uint64"}, "")}

PROFILEZ: Final = _shape("Profilez", {"name": _STRING, "debug": _INT, "duration": "time.Duration"})
EXPVARZ: Final = Shape("ExpvarzEventOptions")
IPQUEUESZ: Final = _shape("Ipqueuesz", {"all": _BOOL, "filter": _STRING})
RAFTZ: Final = _shape("Raftz", {"account": _STRING, "group": _STRING})
ACCSTATZ: Final = _shape("AccountStatz", {"accounts": "[]string", "include_unused": _BOOL})

PAGES: Final = {
    "VARZ": _shape("Varz", {}),
    "SUBSZ": _shape(
        "Subsz",
        {
            "offset": _INT,
            "limit": _INT,
            "subscriptions": _BOOL,
            "account": _STRING,
            "test": _STRING,
        },
    ),
    "CONNZ": _shape(
        "Connz",
        {
            "sort": "server.SortOpt",
            "auth": _BOOL,
            "subscriptions": _BOOL,
            "subscriptions_detail": _BOOL,
            "offset": _INT,
            "limit": _INT,
            "cid": "uint64",
            "mqtt_client": _STRING,
            "state": "server.ConnState",
            "user": _STRING,
            "acc": _STRING,
            "filter_subject": _STRING,
        },
    ),
    "ROUTEZ": _shape("Routez", {"subscriptions": _BOOL, "subscriptions_detail": _BOOL}),
    "GATEWAYZ": _shape("Gatewayz", {"name": _STRING, "accounts": _BOOL, "account_name": _STRING}),
    "LEAFZ": _shape("Leafz", {"subscriptions": _BOOL, "account": _STRING}),
    "ACCOUNTZ": _shape("Accountz", {"account": _STRING}),
    "JSZ": _shape(
        "Jsz",
        {
            "account": _STRING,
            "accounts": _BOOL,
            "streams": _BOOL,
            "consumer": _BOOL,
            "config": _BOOL,
            "leader_only": _BOOL,
            "offset": _INT,
            "limit": _INT,
            "raft": _BOOL,
            "stream_leader_only": _BOOL,
            "direct_consumer": _BOOL,
        },
        "JSzOptions",
    ),
    "HEALTHZ": _shape(
        "Healthz",
        {
            "js-enabled": _BOOL,
            "js-enabled-only": _BOOL,
            "js-server-only": _BOOL,
            "js-meta-only": _BOOL,
            "account": _STRING,
            "stream": _STRING,
            "consumer": _STRING,
            "details": _BOOL,
        },
    ),
}
# Requests about one account: the option that is set from the name in the subject.
ACCOUNT_PAGES: Final = {"SUBSZ": "account", "CONNZ": "acc", "LEAFZ": "account", "JSZ": "account"}
