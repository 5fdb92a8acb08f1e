"""Streams, consumers, buckets and objects of JetStream in the console's API.

What is shown is read from the streams themselves, so no consumer is made for it and nothing is
consumed. Changes are requests to the JetStream API, as clients send them.
"""
