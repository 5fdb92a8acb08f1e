"""Processes that tests start: brokers, original servers, auth servers."""
