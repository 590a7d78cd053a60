"""TFRecord framing: where each record of a shard begins and ends.

A record is `uint64 length | uint32 crc(length) | payload | uint32 crc(payload)`, little-endian
(tensorflow/core/lib/io/record_writer.h). Only the twelve bytes of each header are read here, so a shard of a gigabyte
scans in milliseconds.
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dali_pipe.pages import Buffer, open_pages

HEADER, FOOTER = 12, 4
OVERHEAD = HEADER + FOOTER
_WRITE_AGAIN = "Copy or write the shard again."


_AT_ONCE = 65_536  # headers that are checked together


class RecordError(ValueError):
    """Something is wrong with a shard or one of its records.

    Attributes:
        path: the shard.
        offset: first byte of the record's frame in the shard, or None where the whole shard is meant.
        reason: what is wrong, without the place.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int | None, reason: str):
        self.path, self.offset, self.reason = Path(path), offset, reason
        place = f"{self.path}" if offset is None else f"{self.path}, record at byte {offset}"
        super().__init__(f"{place}: {reason}")

    def __reduce__(self) -> tuple[Callable[..., "RecordError"], tuple[object, ...]]:
        return type(self), (self.path, self.offset, self.reason)


def scan(path: str | os.PathLike[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets and lengths of a shard's records, frame included, in bytes, in file order.

    Raises:
        RecordError: the shard is empty, compressed, a Git LFS pointer, cut short, or not a TFRecord file.
        OSError: it cannot be read.
    """
    with open_pages(path, page=HEADER) as data:
        return frames(path, data)


def frames(path: str | os.PathLike[str], data: Buffer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`scan` of a file that is open."""
    _refuse_lookalikes(path, data)
    offsets, headers, size, at = list[int](), list[bytes](), len(data), 0  # headers are those not checked yet
    length_of = struct.Struct("<Q4x").unpack
    while at + OVERHEAD <= size:
        header = data[at : at + HEADER]
        if len(header) < HEADER:
            raise RecordError(path, at, f"the shard became shorter while it was read. {_WRITE_AGAIN}")
        offsets.append(at)
        headers.append(header)
        at += length_of(header)[0] + OVERHEAD
        if len(headers) == _AT_ONCE:  # here, as a file of zeros has one every 16 bytes
            _check_headers(path, offsets, headers)
            headers.clear()
    _check_headers(path, offsets, headers)
    starts = np.array(offsets, np.int64)
    if at != size:
        cut = offsets[-1] if at > size else at
        raise RecordError(
            path, cut, f"the shard is cut short: the record needs more than the file's {size} bytes. {_WRITE_AGAIN}"
        )
    return starts, np.diff(starts, append=size)


def _refuse_lookalikes(path: str | os.PathLike[str], data: Buffer) -> None:
    head = data[0:64]
    if not head:
        raise RecordError(path, None, f"the shard is empty. {_WRITE_AGAIN}")
    if head.startswith(b"version https://git-lfs"):
        raise RecordError(path, 0, "this is a Git LFS pointer, not the data. Run `git lfs pull` in its folder.")
    if head.startswith(b"\x1f\x8b"):
        raise RecordError(
            path, 0, "the shard is gzipped, and a compressed shard has no seekable records. Run `gunzip`."
        )
    if len(head) < OVERHEAD:
        raise RecordError(path, 0, f"the shard is cut short: {len(head)} bytes hold no record. {_WRITE_AGAIN}")


def _check_headers(path: str | os.PathLike[str], offsets: list[int], headers: list[bytes]) -> None:
    """The length's own checksum tells a TFRecord header, here those of the last offsets, from any other bytes."""
    heads = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, HEADER)
    stored = heads[:, 8:].copy().view("<u4")[:, 0]
    wrong = np.flatnonzero(masked_crc(heads[:, :8]) != stored)
    if wrong.size:
        raise RecordError(
            path,
            offsets[len(offsets) - len(headers) + wrong[0]],
            f"the record's length does not match its checksum: damaged, or not a TFRecord file. {_WRITE_AGAIN}",
        )


def _crc_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


_TABLE = _crc_table()


def masked_crc(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """TFRecord's masked CRC-32C of each row of `(n, width)` bytes; meant for many short rows."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    crc = ~crc
    masked: NDArray[np.uint32] = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    return masked


def read_payload(path: str | os.PathLike[str], offset: int, length: int) -> bytes:
    """The payload of the record whose frame is `length` bytes from `offset`."""
    with open(path, "rb") as file:
        file.seek(offset + HEADER)
        payload = file.read(length - OVERHEAD)
    if len(payload) != length - OVERHEAD:
        raise RecordError(path, offset, f"the shard has become shorter since it was scanned. {_WRITE_AGAIN}")
    return payload
