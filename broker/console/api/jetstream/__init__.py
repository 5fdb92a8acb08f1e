"""Streams, consumers, buckets and objects of JetStream in the console's API.

Messages are read from the streams without a consumer, so they are not consumed. Changes are
requests to the JetStream API, as clients send them.
"""
