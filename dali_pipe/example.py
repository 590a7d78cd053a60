"""Finding features in a serialized `tf.train.Example` without reading their values.

protobuf would copy every image to reach its label. This walks the wire format
(https://protobuf.dev/programming-guides/encoding) and touches only tags and lengths,
which is what lets a whole data set's schema be checked at the price of a scan.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dali_pipe.pages import Buffer

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
KINDS = {1: "bytes", 2: "float", 3: "int64"}  # tensorflow/core/example/feature.proto
_LONGEST_VARINT = 10


class Feature(NamedTuple):
    """Where one feature's value lies: `start` and `end` enclose the BytesList, FloatList or Int64List message."""

    kind: str
    start: int
    end: int


class MalformedExample(ValueError):
    """The bytes are not a serialized Example."""


def _varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = 0
    for place, byte in enumerate(data[at : min(at + _LONGEST_VARINT, end)]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise MalformedExample("a number runs past its message")


def _fields(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """`(field, wire type, start, end)` of each field's value between two positions."""
    while at < end:
        tag, at = _varint(data, at, end)
        wire = tag & 7
        if wire == _BYTES:
            size, at = _varint(data, at, end)
        elif wire == _VARINT:
            size = _varint(data, at, end)[1] - at
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise MalformedExample(f"wire type {wire} is not known")
        if size > end - at:
            raise MalformedExample("a value runs past its message")
        yield tag >> 3, wire, at, at + size
        at += size


def features(data: Buffer, start: int, end: int) -> dict[bytes, Feature]:
    """The features of the Example between two positions; of a repeated key the last counts, as in protobuf.

    Raises:
        MalformedExample: the bytes are not an Example.
    """
    found: dict[bytes, Feature] = {}
    for field, wire, at, to in _fields(data, start, end):
        if field != 1 or wire != _BYTES:
            continue
        for entry_field, entry_wire, entry, entry_end in _fields(data, at, to):
            if entry_field == 1 and entry_wire == _BYTES:
                key, feature = _entry(data, entry, entry_end)
                found[key] = feature
    return found


def _entry(data: Buffer, start: int, end: int) -> tuple[bytes, Feature]:
    key, feature = b"", Feature("empty", end, end)
    for field, wire, at, to in _fields(data, start, end):
        if field == 1 and wire == _BYTES:
            key = data[at:to]
        elif field == 2 and wire == _BYTES:
            for kind, kind_wire, a, b in _fields(data, at, to):
                if kind not in KINDS or kind_wire != _BYTES:
                    continue
                if feature.kind == KINDS[kind]:  # protobuf would join them; nobody writes this
                    raise MalformedExample("a feature's values come in several lists")
                feature = Feature(KINDS[kind], a, b)
    return key, feature


def bytes_values(data: Buffer, feature: Feature) -> list[tuple[int, int]]:
    """`(start, end)` of each value of a bytes feature."""
    return [
        (at, to) for field, wire, at, to in _fields(data, feature.start, feature.end) if (field, wire) == (1, _BYTES)
    ]


def count(data: Buffer, feature: Feature) -> int:
    """How many values a feature holds; of an int64's only the continuation bits are looked at."""
    values = 0
    for field, wire, at, to in _fields(data, feature.start, feature.end):
        if field != 1:
            continue
        if wire != _BYTES or feature.kind == "bytes":
            values += 1
        elif feature.kind == "float":
            values += (to - at) // 4
        else:
            values += sum(byte < 0x80 for byte in data[at:to])
    return values


def int64_values(data: Buffer, feature: Feature, limit: int = 16) -> list[int]:
    """Values of an int64 feature, packed or not; stops once there are more than `limit`."""
    values: list[int] = []
    for field, wire, at, to in _fields(data, feature.start, feature.end):
        while field == 1 and wire in (_VARINT, _BYTES) and at < to and len(values) <= limit:
            value, at = _varint(data, at, to)
            value &= (1 << 64) - 1
            values.append(value - (1 << 64) if value >> 63 else value)
            if wire != _BYTES:
                break
    return values
