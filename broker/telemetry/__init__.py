"""OpenTelemetry: metrics and spans of messages by OTLP; off unless [telemetry] has an endpoint.

Start with `service`. `spans` collects the spans of NATS messages on the loop's thread; `export`
converts and sends them on a separate thread. Only `export` imports the SDK. Imported by the server.
"""
