"""A data set looked at shard by shard, for `dali-tf inspect`: what the scan finds, and what training has no use for.

Reads headers, and a few bytes of each image by which its copies are found. Nothing here stops over bad data: unusable
records are counted, and a shard that is no TFRecord file is named.
"""

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipe import cache, example, tfrecord
from dali_pipe.image_header import FORMATS
from dali_pipe.pages import Buffer, open_pages
from dali_pipe.scan import RECORD, Schema, Table, scan_shard

PROCESSES = ("", "baseline", "progressive", "other")  # of a JPEG; "" for other formats
LOOK = np.dtype(
    [
        ("process", "u1"),  # place in `PROCESSES`
        ("channels", "u1"),  # of a JPEG: 1 gray, 3 colour, 4 CMYK; else 0
        ("named", "u1"),  # place in `FORMATS` of what the file's name says, counted from 1; 0 without a name
        ("probe", "u8"),  # length of the image, and a checksum of parts of it: equal where images are
    ]
)
Tick = Callable[[int], None]

PASSES = 2  # over each shard: the scan's, and that for what training has no use for

_BASELINE, _PROGRESSIVE = (0xC0, 0xC1), (0xC2,)
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
_SUFFIXES = {b"jpg": "jpeg", b"jpe": "jpeg", b"tif": "tiff"}
_LONGEST_NAME, _PROBE, _EVERY = 1024, 64, 256  # bytes; bytes; records between two ticks


class Source(NamedTuple):
    """A shard, and which of its records are asked for.

    Attributes:
        split: whose it is.
        path: the file.
        low: first record asked for, counted in the shard.
        high: the one after the last; None for all.
        first: ordinal of the shard's first record in the split; None to count on from the shard before.
        expected: records in the shard, as the metadata say; None if they say nothing.
    """

    split: str
    path: Path
    low: int = 0
    high: int | None = None
    first: int | None = None
    expected: int | None = None


class Field(NamedTuple):
    """A feature as the records hold it: in how many, and the least and most values in one of them."""

    kind: str
    records: int
    least: int
    most: int


class Shard(NamedTuple):
    """What is in a shard.

    Attributes:
        source: which.
        table: its sound records, `id` being the ordinal in the split.
        looks: a row of `LOOK` for each.
        bad: how many records are unusable.
        fields: by key, over the whole shard.
        bytes: of the file.
        problem: why nothing of it can be read, or what else is wrong; None if nothing.
    """

    source: Source
    table: Table
    looks: NDArray[np.void]
    bad: int = 0
    fields: Mapping[str, Field] = {}
    bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """All shards of a data set, as they were asked for.

    Attributes:
        shards: in order, those of one split after the other; `table["shard"]` is the place here.
        schema: where image and label are.
        classes: names of the classes, where the data set gives them.
    """

    shards: Sequence[Shard]
    schema: Schema
    classes: Sequence[str] = ()

    @property
    def splits(self) -> list[str]:
        """Their names, in order."""
        return list(dict.fromkeys(shard.source.split for shard in self.shards))

    def of(self, split: str) -> list[Shard]:
        """The shards of a split."""
        return [shard for shard in self.shards if shard.source.split == split]


def survey(
    sources: Sequence[Source], schema: Schema, classes: Sequence[str], num_threads: int, tick: Tick, fresh: bool = False
) -> Survey:
    """Look at every shard.

    Args:
        sources: the shards, those of one split one after the other.
        schema: where image and label are.
        classes: names of the classes.
        num_threads: shards that are read at once. Going through their headers is Python's work, and takes one core.
        tick: called with so many bytes as were passed meanwhile; those of a sound shard `PASSES` times.
        fresh: look again at what is in the cache.
    """
    stopped = threading.Event()

    def checked(count: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        tick(count)

    pool = ThreadPoolExecutor(num_threads, "inspect")
    try:
        found = list(pool.map(lambda source: _shard(source, schema, checked, fresh), sources))
    finally:
        stopped.set()  # after Ctrl-C the pool would look at its shards to their ends
        pool.shutdown(cancel_futures=True)
    return Survey(shards=_numbered(found), schema=schema, classes=classes)


def _numbered(shards: Sequence[Shard]) -> list[Shard]:
    """With `shard` and `id` counted through."""
    counted = dict[str, int]()
    for place, shard in enumerate(shards):
        split, first = shard.source.split, shard.source.first
        shard.table["shard"] = place
        shard.table["id"] += counted.get(split, 0) if first is None else first
        counted[split] = counted.get(split, 0) + len(shard.table) + shard.bad
    return list(shards)


def _shard(source: Source, schema: Schema, tick: Tick, fresh: bool) -> Shard:
    nothing = Shard(source, np.empty(0, RECORD), np.empty(0, LOOK), source.expected or 0)
    try:
        size = source.path.stat().st_size
        nothing = nothing._replace(bytes=size)
        scan = scan_shard(source.path, schema, "skip")
        tick(size)
        looks, fields = _looks(source.path, schema, scan.table, tick, fresh)
    except InterruptedError:
        raise
    except tfrecord.RecordError as error:
        return nothing._replace(problem=error.reason)
    except OSError as error:
        return nothing._replace(problem=error.strerror or str(error))
    high = len(scan) if source.high is None else source.high
    there = (scan.table["id"] >= source.low) & (scan.table["id"] < high)
    bad = sum(source.low <= fault.id < high for fault in scan.faults)
    problem = None
    if source.expected not in (None, len(scan)):
        problem = f"the shard holds {len(scan)} records; dataset_info.json says {source.expected}."
    return Shard(source, scan.table[there], looks[there], bad, fields, size, problem)


def _looks(
    path: Path, schema: Schema, table: Table, tick: Tick, fresh: bool
) -> tuple[NDArray[np.void], dict[str, Field]]:
    """From the cache where it holds."""
    kind, now = f"looks\0{schema.image_key}\0{schema.label_key}", cache.fingerprint(path)
    arrays = None if fresh else cache.load(path, kind, now)
    if arrays is None or arrays["looks"].dtype != LOOK:
        looks, fields = _look(path, table, tick)
        keys, numbers = list(fields), [field[1:] for field in fields.values()]
        arrays = {
            "looks": looks,
            "keys": np.array(keys, np.str_),
            "kinds": np.array([fields[key].kind for key in keys], np.str_),
            "numbers": np.array(numbers, np.int64).reshape(-1, 3),
        }
        cache.store(path, kind, now, arrays)
    else:
        tick(int(table["length"].sum()))
    entries = zip(arrays["keys"].tolist(), arrays["kinds"].tolist(), arrays["numbers"].tolist(), strict=True)
    return arrays["looks"], {key: Field(kind, *numbers) for key, kind, numbers in entries}


def _look(path: Path, table: Table, tick: Tick) -> tuple[NDArray[np.void], dict[str, Field]]:
    rows, fields, passed = list[tuple[int, int, int, int]](), dict[str, Field](), 0
    columns = ("offset", "length", "image_offset", "image_length")
    with open_pages(path) as data:
        for place, (at, length, image, size) in enumerate(zip(*(table[c].tolist() for c in columns), strict=True)):
            features = example.features(data, at + tfrecord.HEADER, at + length - tfrecord.FOOTER)
            for key, feature in features.items():
                _add(fields, key.decode("utf-8", "replace"), feature.kind, example.count(data, feature))
            named = _named(data, features)
            rows.append((*_frame(data, image, image + size), named, _probe(data, image, size)))
            passed += length
            if place % _EVERY == 0:
                tick(passed)
                passed = 0
    tick(passed)
    return np.array(rows, LOOK), fields


def _add(fields: dict[str, Field], key: str, kind: str, count: int) -> None:
    known = fields.get(key)
    if known is None:
        fields[key] = Field(kind, 1, count, count)
    else:
        kinds = known.kind if kind in known.kind.split(" or ") else f"{known.kind} or {kind}"
        fields[key] = Field(kinds, known.records + 1, min(known.least, count), max(known.most, count))


def joined(parts: Sequence[Mapping[str, Field]]) -> dict[str, Field]:
    """The fields of several shards."""
    out = dict[str, Field]()
    for key, field in ((key, field) for part in parts for key, field in part.items()):
        known = out.get(key, field._replace(records=0))
        kinds = " or ".join(dict.fromkeys([*known.kind.split(" or "), *field.kind.split(" or ")]))
        least, most = min(known.least, field.least), max(known.most, field.most)
        out[key] = Field(kinds, known.records + field.records, least, most)
    return out


def _named(data: Buffer, features: Mapping[bytes, example.Feature]) -> int:
    """What the file name that some builders keep beside the image says it is."""
    for key, feature in features.items():
        if b"file" in key.lower() and feature.kind == "bytes":
            for start, end in example.bytes_values(data, feature)[:1]:
                suffix = data[max(start, end - _LONGEST_NAME) : end].rpartition(b".")[2].lower()
                name = _SUFFIXES.get(suffix, suffix.decode("ascii", "replace"))
                return FORMATS.index(name) + 1 if name in FORMATS else 0
    return 0


def _frame(data: Buffer, start: int, end: int) -> tuple[int, int]:
    """Process and channels of a JPEG, from its start-of-frame segment (ITU-T T.81, B.2.2)."""
    if data[start : start + 2] != b"\xff\xd8":
        return 0, 0
    for marker, head in _segments(data, start + 2, end):
        if marker in _SOF and len(head) == 10:
            return 1 if marker in _BASELINE else 2 if marker in _PROGRESSIVE else 3, head[9]
    return 3, 0


def _segments(data: Buffer, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Marker and first ten bytes of each segment; bytes between segments are passed over, as libjpeg does."""
    while len(head := data[at : min(at + 10, end)]) >= 4:
        if head[0] != 0xFF or head[1] in (0x00, 0xFF):
            at += 1
            continue
        yield head[1], head
        at += 2 if head[1] in _BARE else 2 + max(head[2] << 8 | head[3], 2)


def _probe(data: Buffer, start: int, size: int) -> int:
    """Length and a checksum of bytes amid and near the end, where two photographs of one camera differ."""
    middle = start + size // 2
    parts = data[middle : min(middle + _PROBE, start + size)], data[start + max(0, size - _PROBE) : start + size]
    return size << 32 | zlib.crc32(b"".join(parts))
