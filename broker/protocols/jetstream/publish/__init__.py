"""Publishing to streams: checks, PubAcks and direct get.

Start with `stream`: one object per stream, which takes what is published to its subjects; `topic`
takes what NSQ clients publish. The account of `protocols/jetstream` makes streams; consumers
read from their stores.
"""
