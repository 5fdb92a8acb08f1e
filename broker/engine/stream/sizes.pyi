"""What each live message of a stream counts for in bytes, by seq."""

from typing import final

@final
class Sizes: ...
