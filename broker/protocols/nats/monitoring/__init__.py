"""The monitoring pages of nats-server: /varz, /connz, /subsz and the others.

Start with `pages`. Imported by the server.
"""
