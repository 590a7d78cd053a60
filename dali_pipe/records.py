"""Records: which records of which shards, in what order, as one numpy table.

The index is the view. DALI's reader reads exactly the `(offset, length)` lines it is given, so every split, filter and
permutation is a selection of rows here, and no data is copied.
"""

import glob
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dali_pipe import cache, example, image_header, tfrecord
from dali_pipe.pages import Buffer, open_pages
from dali_pipe.tfrecord import RecordError

Table = NDArray[np.void]

RECORD = np.dtype(
    [
        ("id", "i8"),  # ordinal in the whole split: keys the record's random draws
        ("shard", "i4"),  # place of its file in `Records.shards`
        ("offset", "i8"),  # of the frame in the shard, bytes
        ("length", "i8"),  # of the frame, bytes
        ("image_offset", "i8"),  # of the encoded image in the shard, bytes
        ("image_length", "i8"),
        ("label", "i8"),  # as stored, before `Schema.label_offset`
        ("height", "i4"),  # pixels as stored, before any turn by `orientation`
        ("width", "i4"),
        ("orientation", "u1"),  # EXIF's 1 to 8
        ("format", "u1"),  # place in `image_header.FORMATS`
    ]
)
_SIDEWAYS = 5  # EXIF orientations from here on exchange height and width


Stamp = tuple[int, int]  # size in bytes, mtime in ns


def stamp(status: os.stat_result) -> Stamp:
    """What tells that a file is the same."""
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Which features of an Example are the image and its label.

    Attributes:
        image_key: a bytes feature with one encoded image.
        label_key: an int64 feature with one value; None where there are no labels, which then read 0.
        label_offset: what the files call the first class; it is subtracted. 1 for ImageNet's `image/class/label`.
    """

    image_key: str = "image"
    label_key: str | None = "label"
    label_offset: int = 0


@dataclass(frozen=True, eq=False)
class Records:
    """A view of the records in some shards.

    Attributes:
        shards: the files.
        table: a row of `RECORD` for each record, in the view's order.
        schema: where image and label are.
        classes: names of the classes, where the data set gives them.
        stamps: size and modification time of each shard when it was scanned; empty where there are no files.
    """

    shards: tuple[Path, ...]
    table: Table
    schema: Schema
    classes: tuple[str, ...] = ()
    stamps: tuple[Stamp, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return f"<Records: {len(self)} records in {len(self.shards)} shards>"

    @property
    def ids(self) -> NDArray[np.int64]:
        """Ordinal of each record in its whole split, `(n,)`."""
        return self.table["id"]

    @property
    def labels(self) -> NDArray[np.int64]:
        """Label of each record, counted from 0, `(n,)`."""
        return self.table["label"] - self.schema.label_offset

    def sizes(self, exif: bool = False) -> NDArray[np.int64]:
        """`(height, width)` of each image in pixels, `(n, 2)`; with `exif`, after the turn by its orientation."""
        stored = np.stack([self.table["height"], self.table["width"]], axis=1).astype(np.int64)
        turned = exif & (self.table["orientation"] >= _SIDEWAYS)
        return np.where(turned[:, None], stored[:, ::-1], stored)

    def select(self, index: ArrayLike | slice) -> "Records":
        """The records at these places, in this order; an index array or a mask."""
        if not isinstance(index, slice):
            index = np.asarray(index)
            index = index if index.size else index.astype(np.int64)  # numpy takes [] for floats
        return replace(self, table=self.table[index])

    def take(self, count: int) -> "Records":
        """The first `count` records, or all if there are fewer."""
        return self.select(slice(_count("count", count)))

    def skip(self, count: int) -> "Records":
        """All but the first `count` records."""
        return self.select(slice(_count("count", count), None))

    def split(self, fraction: float) -> tuple["Records", "Records"]:
        """The first `fraction` of the records and the rest, cut where TFDS cuts a percentage (nearest record)."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"`fraction` must be in [0, 1]. Received: fraction={fraction!r}")
        at = round(fraction * len(self))
        return self.take(at), self.skip(at)

    def exclude(self, ids: Iterable[int]) -> "Records":
        """Without the records of these ids. Nobody else's random draws change.

        Raises:
            ValueError: an id that the view does not hold.
        """
        unwanted = np.fromiter(ids, np.int64)
        if (missing := np.setdiff1d(unwanted, self.ids)).size:
            raise ValueError(f"`ids` must be of records in this view. Received: {missing[:10].tolist()}")
        return self.select(~np.isin(self.ids, unwanted))

    def check_unchanged(self) -> None:
        """Raise if a shard has gone or changed since it was scanned: its records may be anywhere now.

        Raises:
            RecordError: a shard has changed; names it.
            FileNotFoundError: a shard has gone.
        """
        for place in range(len(self.stamps)):
            self.check_stamp(place, os.stat(self.shards[place]))

    def check_stamp(self, shard: int, status: os.stat_result) -> None:
        """`check_unchanged` of one shard, whose status is known."""
        if self.stamps and self.stamps[shard] != stamp(status):
            raise RecordError(
                self.shards[shard], None, "the shard has changed since it was scanned. Make the data set again."
            )

    def where(self, place: int) -> str:
        """Shard and offset of the record at a place, for messages."""
        row = self.table[place]
        return f"{self.shards[row['shard']]}, record at byte {row['offset']}"


def _count(name: str, value: int) -> int:
    if value < 0:
        raise ValueError(f"`{name}` must not be negative. Received: {name}={value!r}")
    return value


def concatenate(parts: Sequence[Records]) -> Records:
    """The records of views of the same shards, one after the other."""
    return replace(parts[0], table=np.concatenate([part.table for part in parts]))


def from_files(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], schema: Schema | None = None
) -> Records:
    """All records of plain TFRecord files, in the order of the files.

    Args:
        files: a path, a glob pattern (its matches in sorted order), or a sequence of these.
        schema: where image and label are; `Schema()` if not given.

    Raises:
        FileNotFoundError: nothing matches.
        RecordError: a shard or record is unusable; names it.
    """
    patterns = [files] if isinstance(files, str | os.PathLike) else list(files)
    paths = [path for pattern in patterns for path in _matches(os.fspath(pattern))]
    if not paths:
        raise FileNotFoundError(f"`files` must match at least one TFRecord file. Received: {files!r}")
    return open_shards(paths, schema or Schema())


def _matches(pattern: str) -> list[Path]:
    if os.path.isfile(pattern):  # a name may hold [ or * itself
        return [Path(pattern)]
    found = sorted(glob.glob(os.path.expanduser(pattern)))
    files = [Path(path) for path in found if os.path.isfile(path)]
    if not files:
        raise FileNotFoundError(f"`files` must match at least one TFRecord file. Received: {pattern!r}")
    return files


def open_shards(paths: Sequence[Path], schema: Schema) -> Records:
    """Scan shards, or take their scan from the cache; ids count through all of them.

    Every record's header is checked, so that nothing is built over a record that would give garbage or a crash.

    Raises:
        RecordError: a shard or record is unusable; names it.
    """
    from tqdm import tqdm

    stamps = tuple(stamp(os.stat(path)) for path in paths)  # before they are read, so that a change meanwhile shows
    with ThreadPoolExecutor(max_workers=min(8, len(paths) or 1)) as pool:
        scans = pool.map(lambda path: scan_shard(path, schema), paths)
        tables = list(tqdm(scans, "Scanning shards", len(paths), leave=False, delay=1, disable=None))
    for place, table in enumerate(tables):
        table["shard"] = place
    table = np.concatenate(tables) if tables else np.empty(0, RECORD)
    table["id"] = np.arange(len(table))
    records = Records(tuple(paths), table, schema, stamps=stamps)
    _check_label_offset(records)
    return records


def _check_label_offset(records: Records) -> None:
    if len(records) and (low := int(records.labels.min())) < 0 and records.schema.label_offset:
        place = int(records.labels.argmin())
        raise ValueError(
            f"`label_offset` must be what the files call the first class. Received: "
            f"label_offset={records.schema.label_offset}, but {records.where(place)}, "
            f"has label {low + records.schema.label_offset}"
        )


def scan_shard(path: Path, schema: Schema) -> Table:
    """The table of one shard's records, from the cache where it holds; `id` and `shard` are left at 0."""
    kind = f"headers\0{schema.image_key}\0{schema.label_key}"
    now = cache.fingerprint(path)
    known = cache.load(path, kind, now)
    if known is not None and known["table"].dtype == RECORD:
        return known["table"]
    with open_pages(path) as data:
        offsets, lengths = tfrecord.frames(path, data)
        table = np.zeros(len(offsets), RECORD)
        table["offset"], table["length"] = offsets, lengths
        rows = [_headers(path, data, at, n, schema) for at, n in zip(offsets.tolist(), lengths.tolist(), strict=True)]
    for name, column in zip(_HEADER_COLUMNS, zip(*rows, strict=True), strict=True):
        table[name] = column
    cache.store(path, kind, now, {"table": table})
    return table


_HEADER_COLUMNS = ("image_offset", "image_length", "label", "height", "width", "orientation", "format")


def _headers(path: Path, data: Buffer, offset: int, length: int, schema: Schema) -> tuple[int, ...]:
    """The columns that lie inside one record; raises RecordError where the record breaks the schema."""
    start, end = offset + tfrecord.HEADER, offset + length - tfrecord.FOOTER
    try:
        features = example.features(data, start, end)
        image, image_end = _image(data, features, schema.image_key)
        label = _label(data, features, schema.label_key)
        header = image_header.read_header(data, image, image_end)
    except (_SchemaError, example.MalformedExample) as error:
        raise RecordError(path, offset, str(error)) from None
    except image_header.UnknownImage as error:
        raise RecordError(path, offset, f"feature {schema.image_key!r} is not an image: {error}") from None
    kind = image_header.FORMATS.index(header.format)
    return image, image_end - image, label, header.height, header.width, header.orientation, kind


class _SchemaError(ValueError):
    """A record without the features the schema asks for."""


def _feature(features: dict[bytes, example.Feature], key: str, kind: str, argument: str) -> example.Feature:
    feature = features.get(key.encode())
    if feature is None:
        there = ", ".join(sorted(repr(k.decode("utf-8", "replace")) for k in features)) or "none"
        raise _SchemaError(f"no feature {key!r}. The record's keys: {there}. Set `{argument}` to one of them.")
    if feature.kind != kind:
        raise _SchemaError(f"feature {key!r} must be {kind}; it is {feature.kind}. Set `{argument}` to another key.")
    return feature


def _image(data: Buffer, features: dict[bytes, example.Feature], key: str) -> tuple[int, int]:
    values = example.bytes_values(data, _feature(features, key, "bytes", "image_key"))
    if len(values) != 1 or values[0][0] == values[0][1]:
        raise _SchemaError(
            f"feature {key!r} must hold one image; it holds {len(values) or 'no'} values, or empty ones."
        )
    return values[0]


def _label(data: Buffer, features: dict[bytes, example.Feature], key: str | None) -> int:
    if key is None:
        return 0
    values = example.int64_values(data, _feature(features, key, "int64", "label_key"))
    if len(values) != 1:
        count = len(values) if len(values) <= 16 else "more than 16"
        raise _SchemaError(f"feature {key!r} must hold one label; it holds {count or 'no'} values.")
    return values[0]
