"""One run of records on its way into a segment."""

from typing import final

@final
class Batch: ...
