"""Scattered reading of a file, a page at a time."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import FileIO

PAGE = 4096


class Pages:
    """Slices of a file, `pages[a:b]`, reading little more than is asked for; shorter than `b - a` beyond its end.

    A memory map would do the same faster, but the kernel kills a process that touches a mapped file which somebody has
    just cut short. Reading only comes back short.
    """

    def __init__(self, file: FileIO, page: int = PAGE):
        self._read, self._page = _reader(file), page
        self._bytes, self._at = b"", 0
        self._length = os.fstat(file.fileno()).st_size

    def __len__(self) -> int:
        """Bytes in the file when it was opened."""
        return self._length

    def __getitem__(self, span: slice) -> bytes:
        at = span.start - self._at
        if at < 0 or span.stop - self._at > len(self._bytes):
            self._bytes = self._read(max(self._page, span.stop - span.start), span.start)
            self._at, at = span.start, 0
        return self._bytes[at : at + span.stop - span.start]


def _reader(file: FileIO) -> Callable[[int, int], bytes]:
    """Reads a number of bytes from an offset on: with pread, as seeking would make a scan a third slower."""
    if hasattr(os, "pread"):
        return partial(os.pread, file.fileno())

    def seek_and_read(count: int, offset: int) -> bytes:  # Windows
        file.seek(offset)
        return file.read(count)

    return seek_and_read


Buffer = Pages | bytes


@contextmanager
def open_pages(path: str | os.PathLike[str], page: int = PAGE) -> Iterator[Pages]:
    """The pages of the file at `path`."""
    with open(path, "rb", buffering=0) as file:
        yield Pages(file, page)
