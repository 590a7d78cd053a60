"""Hostile bytes: whatever comes, the answer is a result or the documented exception, and never anything else.

The long runs take 50,000 inputs each: `pytest -m slow tests/test_fuzz.py`.
"""

import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dali_pipe import Schema, from_files, tfrecord
from dali_pipe import example as example_lib
from dali_pipe.image_header import FORMATS, UnknownImage, read_header
from dali_pipe.tfrecord import RecordError
from tests import odd_images, support
from tf_bridge import verify

QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LONG = settings(max_examples=50_000, deadline=None, suppress_health_check=list(HealthCheck))

EXAMPLE = support.example({"image": support.photograph(0, 20, 24), "label": 3, "name": b"a", "sizes": [20, 24]})
IMAGES = list(odd_images.IMAGES.values())


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with some overwritten, some cut out, some inserted, and an end missing."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.binary(max_size=9))
        data[at : at + draw(st.sampled_from([0, len(piece), 40]))] = piece
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def framed(payloads: list[bytes]) -> bytes:
    """Payloads in sound frames, so that damage inside them is reached."""
    shard = b""
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        shard += length + _masked_crc(length) + payload + _masked_crc(payload)
    return shard


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def scan_bytes(shard: bytes) -> None:
    try:
        offsets, lengths = tfrecord.frames("shard", shard)
    except RecordError as error:
        assert error.reason
        return
    assert int(lengths.sum()) == len(shard)
    assert offsets[0] == 0 and np.array_equal(offsets[1:], (offsets + lengths)[:-1])


def walk(payload: bytes) -> None:
    """Where protobuf reads an Example, the walk finds the same features; it may refuse, but never misread."""
    try:
        ours = example_lib.features(payload, 0, len(payload))
        images = {k: example_lib.bytes_values(payload, f) for k, f in ours.items() if f.kind == "bytes"}
        numbers = {k: example_lib.int64_values(payload, f, 10**6) for k, f in ours.items() if f.kind == "int64"}
    except example_lib.MalformedExample:
        return
    try:
        theirs = tf.train.Example.FromString(payload).features.feature
    except Exception:
        return
    for key, feature in theirs.items():
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            assert [payload[a:b] for a, b in images[key.encode()]] == list(feature.bytes_list.value)
        elif kind == "int64_list":
            assert numbers[key.encode()] == list(feature.int64_list.value)


def look(image: bytes) -> None:
    try:
        header = read_header(image, 0, len(image))
    except UnknownImage:
        return
    assert header.format in FORMATS
    assert header.height > 0 and header.width > 0 and 1 <= header.orientation <= 8


def scan_file(folder: Path, payload: bytes) -> None:
    path = folder / "fuzz.tfrecord"
    path.write_bytes(framed([EXAMPLE, payload]))
    try:
        records = from_files(path, Schema())
    except RecordError as error:
        assert error.path == path and error.offset == len(EXAMPLE) + tfrecord.OVERHEAD
        return
    end = int(records.table["image_offset"][1] + records.table["image_length"][1])
    assert end <= path.stat().st_size


def look_at_all(folder: Path, images: list[bytes]) -> None:
    """Each image is sound or a finding at its place, whatever its neighbours are, and the same the second time."""
    payloads = [support.example({"image": image, "label": k}) for k, image in enumerate([*images, odd_images.PLAIN])]
    path = folder / "fuzz.tfrecord"
    path.write_bytes(framed(payloads))
    records = from_files(path, Schema(max_pixels=10**6), "skip")
    report = verify.verify(records, 1)
    assert (report.records, report.verified) == (len(payloads), len(records))
    starts = np.cumsum([0, *(len(payload) + tfrecord.OVERHEAD for payload in payloads)]).tolist()
    found = [finding.record for finding in report.findings]
    assert found == sorted(set(found)) and len(images) not in found
    for finding in report.findings:
        assert finding.offset == starts[finding.record] and finding.cause in ("header", "decode") and finding.reason
    again = verify.verify(records, 1)
    assert (again.verified, again.findings) == (0, report.findings)


SHARDS = damaged(st.lists(st.sampled_from([EXAMPLE, b"", b"x" * 50]), min_size=1, max_size=4).map(framed))
PICTURES = damaged(st.sampled_from(IMAGES)) | st.binary(max_size=200)
TEN_PICTURES = st.lists(PICTURES, min_size=10, max_size=10)


@QUICK
@given(SHARDS | st.binary(max_size=200))
@example(struct.pack("<QI", 2**64 - 1, 0) + bytes(8))
def test_framing(shard: bytes) -> None:
    scan_bytes(shard)


@QUICK
@given(damaged(st.just(EXAMPLE)) | st.binary(max_size=200))
def test_examples(payload: bytes) -> None:
    walk(payload)


@QUICK
@given(PICTURES)
def test_image_headers(image: bytes) -> None:
    look(image)


@QUICK
@given(payload=damaged(st.just(EXAMPLE)))
def test_a_damaged_record_is_named(tmp_path: Path, payload: bytes) -> None:
    scan_file(tmp_path, payload)


@settings(QUICK, max_examples=10)
@given(images=TEN_PICTURES)
def test_verify(tmp_path: Path, images: list[bytes]) -> None:
    look_at_all(tmp_path, images)


@pytest.mark.slow
@settings(LONG, max_examples=LONG.max_examples // 10)
@given(images=TEN_PICTURES)
def test_verify_for_longer(tmp_path: Path, images: list[bytes]) -> None:
    look_at_all(tmp_path, images)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["framing", "examples", "headers"])
def test_for_longer(target: str) -> None:
    strategy, check = {
        "framing": (SHARDS | st.binary(max_size=500), scan_bytes),
        "examples": (damaged(st.just(EXAMPLE)) | st.binary(max_size=500), walk),
        "headers": (PICTURES, look),
    }[target]
    LONG(given(strategy)(check))()
