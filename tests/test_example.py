"""The wire walk over Examples against protobuf's own parse."""

import random
import struct
from collections.abc import Callable

import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from dali_pipe import example
from dali_pipe.example import MalformedExample
from tests import support

Values = tuple[str, list[bytes] | list[int] | None]


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: bytes | int) -> bytes:
    """A length-delimited field, or a varint field."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _unknown(rng: random.Random) -> bytes:
    """A field no message has yet, of any wire type; mostly none."""
    number = rng.choice([15, 16, 5000])
    return rng.choice(
        [
            *[b""] * 8,
            _field(number, rng.getrandbits(64)),
            _field(number, rng.randbytes(rng.randrange(200))),
            _varint(rng.choice([1, number]) << 3 | 1) + rng.randbytes(8),  # also a known number of another type
            _varint(rng.choice([1, number]) << 3 | 5) + rng.randbytes(4),
        ]
    )


def _integer(rng: random.Random) -> int:
    return rng.choice([0, 1, -1, 127, 128, 300, 2**63 - 1, -(2**63), rng.randrange(-(2**40), 2**40)])


def _int64_list(rng: random.Random) -> bytes:
    """Runs of values, packed or one by one."""
    parts = []
    for _ in range(rng.randrange(4)):
        values = [_integer(rng) for _ in range(rng.randrange(4))]
        packed = rng.random() < 0.5
        parts += [_field(1, b"".join(map(_varint, values)))] if packed else [_field(1, v) for v in values]
        parts.append(_unknown(rng))
    return b"".join(parts)


def _bytes_list(rng: random.Random) -> bytes:
    values = [rng.randbytes(rng.choice([0, 1, 5, 127, 128, 400])) for _ in range(rng.randrange(4))]
    return b"".join(_field(1, value) + _unknown(rng) for value in values)


def _float_list(rng: random.Random) -> bytes:
    return _field(1, struct.pack("<3f", 0.5, -1, 1e9)) + _unknown(rng)


def _feature(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return _unknown(rng)  # a feature of no kind
    make: Callable[[random.Random], bytes] = (_bytes_list, _float_list, _int64_list)[kind - 1]
    return _unknown(rng) + _field(kind, make(rng)) + _unknown(rng)


def _entry(rng: random.Random) -> bytes:
    key = rng.choice([b"", b"image", b"label", "größe".encode(), b"k" * 200])
    fields = [_field(1, key), _field(2, _feature(rng))]  # an unknown field here makes Python's protobuf drop the entry
    rng.shuffle(fields)
    return b"".join(fields)


def _example(rng: random.Random) -> bytes:
    """A serialized Example as any writer might make it: keys come back, fields in any order, features in parts."""
    parts = []
    for _ in range(rng.randrange(1, 3)):
        entries = [_field(1, _entry(rng)) + _unknown(rng) for _ in range(rng.randrange(5))]
        parts += [_field(1, b"".join(entries)), _unknown(rng)]
    return b"".join(parts)


def _ours(data: bytes, before: bytes = b"", behind: bytes = b"") -> dict[str, Values]:
    whole = before + data + behind
    found = example.features(whole, len(before), len(before) + len(data))
    values: dict[str, Values] = {}
    for key, feature in found.items():
        content: list[bytes] | list[int] | None = None
        if feature.kind == "bytes":
            content = [whole[start:end] for start, end in example.bytes_values(whole, feature)]
        elif feature.kind == "int64":
            content = example.int64_values(whole, feature, limit=1000)
        values[key.decode()] = feature.kind, content
    return values


def _protobufs(data: bytes) -> dict[str, Values]:
    values: dict[str, Values] = {}
    for key, feature in tf.train.Example.FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        content = {"bytes_list": list(feature.bytes_list.value), "int64_list": list(feature.int64_list.value)}
        values[key] = (kind or "empty").removesuffix("_list"), content.get(kind)
    return values


def test_random_examples_read_as_protobuf_reads_them() -> None:
    rng = random.Random(5)
    for _ in range(3000):
        data = _example(rng)
        assert _ours(data) == _protobufs(data), data.hex(" ")


def test_what_tensorflow_writes_reads_as_protobuf_reads_it() -> None:
    data = support.example({"image": [b"a", b"", b"b" * 300], "label": [-5, 0, 2**40], "weight": 0.5, "empty": []})
    assert _ours(data) == _protobufs(data)
    assert _ours(data)["image"] == ("bytes", [b"a", b"", b"b" * 300])
    assert _ours(data)["label"] == ("int64", [-5, 0, 2**40])
    assert _ours(data)["weight"] == ("float", None)


def test_only_the_bytes_between_the_positions_count() -> None:
    data = support.example({"image": b"pixels", "label": 3})
    assert _ours(data, before=b"\xff" * 13, behind=b"\x0a" * 9) == _ours(data)


def test_of_a_repeated_key_the_last_counts() -> None:
    first, last = (_field(1, _field(1, b"label") + _field(2, _field(3, _field(1, n)))) for n in (1, 2))
    assert _ours(_field(1, first + last)) == {"label": ("int64", [2])}


def test_a_list_in_several_parts_is_refused() -> None:
    """protobuf joins them. A reader that takes the first, as DALI does, would show another image than was checked."""
    feature = _field(1, _field(1, b"one")) + _field(1, _field(1, b"two"))
    data = _field(1, _field(1, _field(1, b"image") + _field(2, feature)))
    assert _protobufs(data) == {"image": ("bytes", [b"one", b"two"])}
    with pytest.raises(MalformedExample, match="several lists"):
        example.features(data, 0, len(data))


def test_of_two_kinds_the_last_counts() -> None:
    feature = _field(3, _field(1, 1)) + _field(1, _field(1, b"x"))
    data = _field(1, _field(1, _field(1, b"label") + _field(2, feature)))
    assert _ours(data) == _protobufs(data) == {"label": ("bytes", [b"x"])}


@pytest.mark.parametrize("limit", [0, 1, 3, 100])
def test_int64_values_stops_past_its_limit(limit: int) -> None:
    for values in ([7] * 50, [7] * 2):
        data = support.example({"label": values})
        feature = example.features(data, 0, len(data))[b"label"]
        assert len(example.int64_values(data, feature, limit)) == min(len(values), limit + 1)


def test_every_prefix_is_refused_or_read() -> None:
    rng = random.Random(6)
    whole = [support.example({"image": [b"abc" * 60], "label": [1, -1]}), *(_example(rng) for _ in range(40))]
    refused = 0
    for data in whole:
        for end in range(len(data)):
            try:
                assert isinstance(_ours(data[:end]), dict)
            except MalformedExample:
                refused += 1
    assert refused > 1000


def test_damaged_bytes_are_refused_or_read() -> None:
    rng = random.Random(7)
    data = support.example({"image": [b"abc" * 20], "label": [1, -1], "size": [3, 4]})
    for _ in range(4000):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = example.features(bytes(damaged), 0, len(damaged))
            for feature in found.values():
                example.bytes_values(bytes(damaged), feature)
                example.int64_values(bytes(damaged), feature)
        except MalformedExample:
            continue


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a", "a number runs past its message"),
        (b"\x0a\x05abc", "a value runs past its message"),
        (b"\xff" * 30, "a number runs past its message"),
        (b"\x0b", "wire type 3 is not known"),
        (_field(1, b"\x0a\x7f"), "a value runs past its message"),
        (b"\xff\xd8\xff\xe0" + bytes(40), "is not known|runs past"),  # a JPEG
    ],
)
def test_malformed(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError):
        tf.train.Example.FromString(data)
    with pytest.raises(MalformedExample, match=message):
        example.features(data, 0, len(data))
