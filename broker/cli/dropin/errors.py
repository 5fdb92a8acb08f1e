"""Texts of the commands that replace originals, and of log lines that tools search for.

The wording is that of Go's flag package, go-options, nsqd and nats-server 2.10.22.
"""

from __future__ import annotations

from typing import Final

# --- Go's flags, nsqd and nsqlookupd -------------------------------------------------------------

GO_PARSE_ERROR: Final = "parse error"
GO_OUT_OF_RANGE: Final = "value out of range"
GO_BAD_SYNTAX: Final = "bad flag syntax: {}"
GO_NOT_DEFINED: Final = "flag provided but not defined: -{}"
GO_NEEDS_ARGUMENT: Final = "flag needs an argument: -{}"
GO_INVALID_VALUE: Final = "invalid value {} for flag -{}: {}"
GO_INVALID_BOOLEAN: Final = "invalid boolean value {} for -{}: {}"
GO_COERCE: Final = "ERROR: option resolution failed to coerce {} for {} - {}"
NSQD_LOG_LEVEL: Final = "invalid log level '{word}' (debug, info, warn, error, fatal)"
NSQD_TLS_REQUIRED: Final = "strconv.ParseBool: parsing {quoted}: invalid syntax"
NSQD_TLS_VERSION: Final = "unknown tlsVersionOption {quoted}"
NSQD_NODE_ID: Final = "--node-id must be [0,1024)"
NSQD_DEFLATE_LEVEL: Final = "--max-deflate-level must be [1,9]"
NSQD_TLS_WITHOUT: Final = "cannot require TLS client connections without TLS key and cert"
NSQD_CLIENT_TLS: Final = "failed to build client TLS config - {}"
NSQD_AUTH_METHOD: Final = "--auth-http-request-method must be post or get"
NSQD_PERCENTILE: Final = "invalid E2E processing latency percentile: {}"
NSQD_NO_TCP: Final = "--tcp-address must not be empty"  # ours: nsqd takes an unusual address
NSQD_NO_LOCK: Final = "failed to lock data-path: {}"
NSQD_LOCKED: Final = (
    "failed to lock data-path: cannot flock directory {} - resource temporarily unavailable "
    "(possibly in use by another instance of nsqd)"
)
DROPIN_START: Final = "failed to instantiate {} - {}"
DROPIN_CONFIG: Final = "failed to load config file {} - {}"
DROPIN_UNKNOWN_KEY: Final = "{}: unknown key {} has no effect{}"
DROPIN_PARSING: Final = "failed parsing {} {}"

# --- nats-server ---------------------------------------------------------------------------------

FLAG_REFUSED: Final = "{} is not supported: {}"
STAN_JETSTREAM: Final = "JetStream is in twinwire nats-server and twinwire serve"
FLAG_NO_EFFECT: Final = "{} has no effect: {}"
TLS_NO_CERTIFICATE: Final = "TLS Server certificate must be present and valid"
TLS_NO_KEY: Final = "TLS Server private key must be present and valid"
UNKNOWN_WORD: Final = "unrecognized command: {}"
CHECK_WHAT: Final = "must specify [-c, --config] option to check configuration file syntax"
CHECKED_SHORT: Final = "{}: configuration file {} is valid"
CHECKED: Final = "{}: configuration file {} is valid ({})"
LOG_FILE: Final = "error opening file: {}"
LOG_KEPT: Final = "Unable to rotate the log file (%s), next try at %d bytes"
SYSLOG: Final = 'error connecting to syslog: "{}"'
SYSLOG_NETWORK: Final = 'error invalid network type: "{}"'
SIGNAL_PARAMETERS: Final = "invalid signal parameters: [{}]"
SIGNAL_UNKNOWN: Final = "unknown signal {}"
SIGNAL_FAILED: Final = "\nsignal {} {}: {}"
PID_INVALID: Final = "invalid pid: {}"
PID_MANY: Final = "multiple {} processes running:\n{}"
PID_NONE: Final = "no {} processes running"
PID_FILE: Final = "Could not write pidfile: {}"
PID_FILE_AGAIN: Final = "Failed to write pidfile: {}"
PORTS_FILE: Final = "Error writing ports file ({}): {}"
PORTS_FILE_LEFT: Final = "Error cleaning up ports file {}: {}"
LISTEN: Final = 'Error listening on port: {}, "{}"'
LISTEN_LEAF: Final = "Error listening on leafnode port: {} - {}"
LISTEN_WEBSOCKET: Final = "Unable to listen for websocket connections: {}"
MONITOR: Final = "Can't start monitoring: {}"
MONITOR_LISTEN: Final = "can't listen to the monitor port: {}"
MONITOR_BOTH: Final = "can't specify both HTTP ({}) and HTTPs ({}) ports"
MONITOR_TLS: Final = "TLS cert and key required for HTTPS"
START: Final = "Can't start: {}"
ADVERTISE: Final = "Error setting server INFO with ClientAdvertise value of {}, err={}"
ADVERTISE_WEBSOCKET: Final = "Unable to get websocket connect URLs: {}"
ADVERTISE_LEAF: Final = "Error setting leafnode INFO with LeafNode.Advertise value of {}, err={}"
TLS_FILES: Final = "error parsing X509 certificate/key pair: {}"
TLS_FIRST: Final = 'Clients that are not using "TLS Handshake First" option will fail to connect'
PAYLOAD_LARGE: Final = (
    "Maximum payloads over 8.00 MB are generally discouraged and could lead to poor performance"
)

# --- nats-streaming-server -----------------------------------------------------------------------

STAN_SIZE: Final = "{} should be a size, got '{}'"
STAN_START: Final = "STREAM: Failed to start: {}"
STAN_NO_FOLDER: Final = "for FILE stores, root directory must be specified"
STAN_STORE_TYPE: Final = "unsupported store type: {}"
STAN_NEGATIVE: Final = "max {} limit cannot be negative ({})"
STAN_MANY_CHANNELS: Final = "too many channels defined ({}). The max channels limit is set to {}"
STAN_LOGIN: Final = "nats: Authorization Violation"
STAN_NO_EFFECT: Final = "STREAM: without effect here: {}"
STAN_CHANNEL_NAME: Final = "invalid channel name {}"
STAN_UNKNOWN_STORE: Final = "unknown store type: {}"
# Our own texts: reasons for what is not available.
STAN_FOREIGN: Final = (
    "{0} contains the store of a nats-streaming-server: import it with `twinwire import-stan {0} "
    "--data NEW`, then start with -dir NEW"
)
STAN_EXTERNAL: Final = "the NATS server is part of this process"
STAN_CLUSTERED: Final = "this server does not support clusters"
STAN_GROUP: Final = "fault tolerance groups are not supported"
STAN_PARTITIONS: Final = "partitioning is not supported: all channels are served"
STAN_SQL: Final = "the stores are FILE and MEMORY"
STAN_ENCRYPTION: Final = "stored messages are not encrypted; use an encrypted file system"
STAN_ARCHIVE: Final = "scripts are not supported; twinwire archive writes topics to files"
STAN_OPERATOR: Final = "the account of the service cannot be derived from a token"
