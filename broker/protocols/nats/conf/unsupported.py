"""Features of nats-server that Twinwire lacks: refused if a configuration requires them.

Parts of these blocks that require no missing feature have no effect, so that a configuration of
nats-server can be used unchanged if it needs none of them.
"""

from __future__ import annotations

from typing import Final

from broker.protocols.nats.conf.fields import Block, words

_LISTEN: Final = ("listen", "port")
# Reasons, each with an alternative.
_ROUTES: Final = "routes to other servers are not available; connect to them with leafnodes.remotes"
_GATEWAYS: Final = "gateways are not available; connect clusters with leafnodes.remotes"
_NO_MQTT: Final = "MQTT is not available; remove the block"
# Keys without an effect on their own: they only modify a missing feature.
_CLUSTER: Final = words(
    "host net authorization tls cluster_advertise advertise no_advertise connect_retries"
    " permissions pool_size accounts compression ping_interval ping_max connect_backoff"
    " write_deadline write_timeout"
)
_GATEWAY: Final = words(
    "host net authorization tls advertise connect_retries reject_unknown reject_unknown_cluster"
    " connect_backoff write_deadline write_timeout"
)
_MQTT: Final = words(
    "host net tls authorization authentication no_auth_user ack_wait ackwait max_ack_pending"
    " max_pending max_inflight js_domain stream_replicas consumer_replicas consumer_memory_storage"
    " consumer_inactive_threshold consumer_auto_cleanup reject_qos2_publish"
    " downgrade_qos2_subscribe js_api_timeout api_timeout"
)


def cluster_name(root: Block) -> str:
    """The name of a cluster, the only allowed key: INFO shows it to leaf nodes."""
    inner = root.block("cluster")
    if inner is None:
        return ""
    name = inner.name("cluster", "name")
    if name == "_":
        inner.wrong("cluster name is reserved", "name")
    routes = inner.take("routes")
    if routes is not None and routes.it != []:
        root.mistakes.add(routes, f"cluster.routes: {_ROUTES}")
    _no_listener(inner, "cluster", _ROUTES)
    _note_without_effect(inner, _CLUSTER)
    return name


def gateway(root: Block) -> None:
    """Refuse gateways."""
    inner = root.block("gateway")
    if inner is None:
        return
    for key in ("name", "gateways"):
        if inner.has(key):
            inner.wrong(f"gateway.{key}: {_GATEWAYS}", key)
            inner.take(key)
    _no_listener(inner, "gateway", _GATEWAYS)
    _note_without_effect(inner, _GATEWAY)


def mqtt(root: Block) -> None:
    """Refuse MQTT."""
    inner = root.block("mqtt")
    if inner is None:
        return
    _no_listener(inner, "mqtt", _NO_MQTT)
    _note_without_effect(inner, _MQTT)


def profiling_and_ocsp(root: Block) -> None:
    """Keys without an effect here, and OCSP stapling, of which only mode auto is accepted."""
    for key in ("prof_port", "prof_block_rate"):
        _without_effect(root, root.number, key)
    ocsp = root.take("ocsp")
    if ocsp is not None:
        mode = ocsp.it
        if isinstance(mode, dict):
            inner = Block(ocsp, root.mistakes, "ocsp")
            mode = inner.text("mode", default="auto").lower()
            inner.take("url")
            inner.take("urls")
            inner.done()
        if mode in ("always", "must"):
            root.mistakes.add(ocsp, f"ocsp: mode {mode}: stapling is not available")
        elif mode not in (True, False, "auto", "never"):
            root.mistakes.add(ocsp, "ocsp: expected true, false or a map")
        elif mode not in (False, "never"):
            root.mistakes.note(ocsp, "ocsp: responses are not stapled here")
    entry = root.peek("disable_sublist_cache", "no_sublist_cache")
    if entry is not None and entry.it is True:
        root.mistakes.note(entry, "disable_sublist_cache: has no effect here")
    cache = root.take("ocsp_cache")
    if cache is not None:
        root.mistakes.note(cache, "ocsp_cache: has no effect here")
    domains = root.take("default_js_domain")
    if domains is not None:
        root.mistakes.note(domains, "default_js_domain: has no effect here")


def _without_effect(root: Block, read: object, key: str) -> None:
    entry = root.peek(key)
    if entry is not None:
        assert callable(read)
        read(key)
        root.mistakes.note(entry, f"{key}: has no effect here")


def _no_listener(block: Block, name: str, reason: str) -> None:
    for key in _LISTEN:
        entry = block.peek(key)
        asked = block.listen(key) if key == "listen" else block.port(key)
        if entry is not None and asked not in (None, 0) and entry.it != 0:
            block.mistakes.add(entry, f"{name}.{key}: {reason}")


def _note_without_effect(block: Block, keys: tuple[str, ...]) -> None:
    for key in keys:
        entry = block.take(key)
        if entry is not None:
            block.mistakes.note(entry, f"{block.what}.{key}: has no effect here")
    block.done()
