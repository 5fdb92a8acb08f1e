"""Messages of a stream that go at a time of their own."""

from typing import final

@final
class Expiry: ...
