"""Rows of Arrow columns to blocks of records."""

from typing import Any, Self, final

@final
class Column:
    rows: int
    def __new__(
        cls, rows: int, start: int, valid: Any, offsets: Any, data: Any, data_len: int = 0
    ) -> Self: ...

@final
class Packer:
    def __new__(
        cls,
        value: Column,
        *,
        topic: Column | None = None,
        one_topic: bytes | None = None,
        subject: Column | None = None,
        key: Column | None = None,
        key_name: bytes | None = None,
        message_id: Column | None = None,
        headers: tuple[Column, Column, Column, Column] | None = None,
        not_before: tuple[int, Any, Any] | None = None,
        as_read: bool = False,
    ) -> Self: ...
    def next(self, bytes_wanted: int, bytes_max: int) -> tuple[bytes, bytes] | None: ...
