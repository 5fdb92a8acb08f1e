"""Publishing to streams: checks, PubAcks and direct get.

Start with `stream`: one object per stream, which stores the messages on its subjects. `topic`
receives the messages of NSQ clients. `account.py` of protocols/jetstream creates the streams;
consumers read from their stores. The console reads streams too.
"""
