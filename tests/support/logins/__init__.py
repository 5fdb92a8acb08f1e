"""Tables of NATS logins that Twinwire and the original must answer alike."""
