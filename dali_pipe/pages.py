"""Scattered reading of a file, a page at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

PAGE = 4096


class Pages:
    """Slices of a file, `pages[a:b]`, reading little more than is asked for; shorter than `b - a` beyond its end.

    A memory map would do the same faster, but the kernel kills a process that touches a mapped file which somebody has
    just cut short. Reading only comes back short.
    """

    def __init__(self, file: BinaryIO, page: int = PAGE):
        self._descriptor, self._page = file.fileno(), page
        self._bytes, self._at = b"", 0
        self._length = os.fstat(self._descriptor).st_size

    def __len__(self) -> int:
        """Bytes in the file when it was opened."""
        return self._length

    def __getitem__(self, span: slice) -> bytes:
        at = span.start - self._at
        if at < 0 or span.stop - self._at > len(self._bytes):
            self._bytes = os.pread(self._descriptor, max(self._page, span.stop - span.start), span.start)
            self._at, at = span.start, 0
        return self._bytes[at : at + span.stop - span.start]


Buffer = Pages | bytes


@contextmanager
def open_pages(path: str | os.PathLike[str], page: int = PAGE) -> Iterator[Pages]:
    """The pages of the file at `path`."""
    with open(path, "rb", buffering=0) as file:
        yield Pages(file, page)
