"""Stand-ins for tests without a socket: loop and clock, transports, parts of servers."""
