"""NSQ: the V2 protocol of nsqd over TCP, and its HTTP API."""
