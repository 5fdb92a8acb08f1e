"""OpenTelemetry: metrics and spans of messages by OTLP; off unless [telemetry] has an endpoint.

Start with `service`. `spans` sees NATS traffic on the loop's thread and only collects; `export`
converts and sends on a thread of its own, and alone imports the SDK. Imported by the server.
"""
