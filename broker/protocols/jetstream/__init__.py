"""JetStream: JSON requests on NATS subjects; streams are logs of the engine.

Start with `service` and `account`, then `api/`; `topics` makes streams topics of NSQ. The server
imports it; it may import NATS and the engine.
"""
