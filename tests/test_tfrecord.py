"""Framing of TFRecord files: what TensorFlow wrote is found, and what is broken is named."""

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_pipe import tfrecord
from dali_pipe.tfrecord import RecordError
from tests import support

PAYLOADS = [b"first", b"", b"x" * 1000, bytes(range(256)), b"last"]
OFFSETS = [0, 21, 37, 1053, 1325]  # each frame is 16 bytes longer than its payload
SIZE = 1345


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return support.write_shard(tmp_path / "data.tfrecord", PAYLOADS)


def _crc(data: bytes) -> bytes:
    return tfrecord.masked_crc(np.frombuffer(data, np.uint8)[None]).astype("<u4").tobytes()


def _header(length: int) -> bytes:
    return struct.pack("<Q", length) + _crc(struct.pack("<Q", length))


def test_scan_finds_what_tensorflow_wrote(shard: Path) -> None:
    offsets, lengths = tfrecord.scan(shard)
    assert offsets.tolist() == OFFSETS
    assert lengths.tolist() == [len(payload) + 16 for payload in PAYLOADS]
    assert offsets.dtype == lengths.dtype == np.int64


def test_payloads_are_read_back(shard: Path) -> None:
    spans = zip(*(column.tolist() for column in tfrecord.scan(shard)), strict=True)
    assert [tfrecord.read_payload(shard, *span) for span in spans] == PAYLOADS


def test_masked_crc_is_tensorflows(shard: Path) -> None:
    data = shard.read_bytes()
    for offset, payload in zip(OFFSETS, PAYLOADS, strict=True):
        assert data[offset + 8 : offset + 12] == _crc(data[offset : offset + 8])
        end = offset + 12 + len(payload)
        assert data[end : end + 4] == _crc(payload)


def test_masked_crc_of_many_rows_at_once() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (100, 8), dtype=np.uint8)
    assert tfrecord.masked_crc(rows).tobytes() == b"".join(_crc(row.tobytes()) for row in rows)


@pytest.mark.parametrize(
    ("size", "offset"),
    [
        (SIZE - 1, OFFSETS[-1]),  # in the last record's checksum
        (SIZE - 5, OFFSETS[-1]),  # in its payload
        (OFFSETS[-1] + 11, OFFSETS[-1]),  # in its header
        (OFFSETS[-1] + 1, OFFSETS[-1]),
        (OFFSETS[2] + 500, OFFSETS[2]),  # in the payload of one in the middle
        (OFFSETS[2] + 16, OFFSETS[2]),  # after a header and four bytes
        (OFFSETS[1] + 3, OFFSETS[1]),
        (20, 0),
    ],
)
def test_a_shard_cut_short_names_the_broken_record(shard: Path, size: int, offset: int) -> None:
    os.truncate(shard, size)
    with pytest.raises(RecordError, match=f"data.tfrecord, record at byte {offset}: the shard is cut short") as caught:
        tfrecord.scan(shard)
    assert (caught.value.path, caught.value.offset) == (shard, offset)
    assert f"{size} bytes" in str(caught.value)


@pytest.mark.parametrize("size", OFFSETS[1:])
def test_a_shard_cut_between_records_is_a_shorter_shard(shard: Path, size: int) -> None:
    os.truncate(shard, size)
    assert tfrecord.scan(shard)[0].tolist() == [offset for offset in OFFSETS if offset < size]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"data\.tfrecord: the shard is empty\. Copy or write the shard again"),
        (POINTER, r"record at byte 0: this is a Git LFS pointer, not the data\. Run `git lfs pull`"),
        (gzip.compress(b"anything" * 9, mtime=0), r"record at byte 0: the shard is gzipped.* Run `gunzip`"),
        (b"short", r"record at byte 0: the shard is cut short: 5 bytes hold no record"),
        (b"This is a text file, a long one.\n" * 9, "record at byte 0: .* damaged, or not a TFRecord file"),
        (bytes(100), "record at byte 0: the record's length does not match its checksum"),
        (b"\xff" * 100, "record at byte 0: the record's length does not match its checksum"),
    ],
)
def test_what_is_not_a_shard_says_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message):
        tfrecord.scan(path)


def test_a_gzipped_shard_is_told_by_its_content(shard: Path) -> None:
    shard.write_bytes(gzip.compress(shard.read_bytes(), mtime=0))
    with pytest.raises(RecordError, match="gzipped"):
        tfrecord.scan(shard)


@pytest.mark.parametrize("place", range(len(OFFSETS)))
@pytest.mark.parametrize("byte", [0, 7, 8, 11])
def test_a_damaged_length_is_named(shard: Path, place: int, byte: int) -> None:
    data = bytearray(shard.read_bytes())
    data[OFFSETS[place] + byte] ^= 0x10
    shard.write_bytes(data)
    with pytest.raises(RecordError, match=f"record at byte {OFFSETS[place]}: the record's length does not match"):
        tfrecord.scan(shard)


@pytest.mark.parametrize("place", range(len(OFFSETS)))
def test_headers_are_checked_some_at_a_time(shard: Path, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "_AT_ONCE", 2)
    assert tfrecord.scan(shard)[0].tolist() == OFFSETS
    test_a_damaged_length_is_named(shard, place, 0)


def test_a_file_of_zeros_is_not_read_to_its_end() -> None:
    """It has a header every 16 bytes: of a large one they would fill the memory."""

    class Zeros(bytes):
        read = 0

        def __len__(self) -> int:
            return 1 << 50

        def __getitem__(self, span: Any) -> Any:
            self.read += 1
            return bytes(span.stop - span.start)

    with pytest.raises(RecordError, match="record at byte 0: the record's length does not match"):
        tfrecord.frames("zeros", zeros := Zeros())
    assert zeros.read < 100_000


def test_junk_after_the_last_record_is_named(shard: Path) -> None:
    with open(shard, "ab") as file:
        file.write(bytes(64))
    with pytest.raises(RecordError, match=f"record at byte {SIZE}: the record's length does not match"):
        tfrecord.scan(shard)


def test_a_scan_reads_only_headers(tmp_path: Path) -> None:
    """Two records of 1 TiB, all holes: nobody reads so much, here or anywhere."""
    path, huge = tmp_path / "sparse.tfrecord", 1 << 40
    with open(path, "wb") as file:
        for place in range(2):
            file.seek(place * (huge + 16))
            file.write(_header(huge))
        file.truncate(2 * (huge + 16))
    offsets, lengths = tfrecord.scan(path)
    assert offsets.tolist() == [0, huge + 16]
    assert lengths.tolist() == [huge + 16] * 2


def test_a_length_beyond_any_file_is_a_cut_shard(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    path.write_bytes(_header(2**64 - 1) + bytes(20))
    with pytest.raises(RecordError, match="record at byte 0: the shard is cut short"):
        tfrecord.scan(path)


def test_a_missing_shard_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.tfrecord"):
        tfrecord.scan(tmp_path / "gone.tfrecord")


def test_reading_a_shard_that_shrank_names_the_record(shard: Path) -> None:
    os.truncate(shard, 30)
    with pytest.raises(RecordError, match="record at byte 21: the shard has become shorter"):
        tfrecord.read_payload(shard, 21, 40)


@pytest.mark.parametrize("offset", [None, 12])
def test_record_errors_cross_processes(offset: int | None) -> None:
    error = RecordError("/data/a.tfrecord", offset, "it is broken.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RecordError
    assert str(again) == str(error)
    assert (again.path, again.offset, again.reason) == (Path("/data/a.tfrecord"), offset, "it is broken.")
