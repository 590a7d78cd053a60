"""One shard scanned: where its records lie, what their headers say, and which of them are unusable.

Reads no more than headers, so that nothing is built over a record that would give garbage or a crash. A shard whose
frames are broken has no records to speak of, and always raises; a record that breaks the schema can be set aside.
"""

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipe import cache, example, image_header, tfrecord
from dali_pipe.pages import Buffer, open_pages
from dali_pipe.tfrecord import RecordError

Table = NDArray[np.void]
OnFault = Literal["raise", "skip"]

RECORD = np.dtype(
    [
        ("id", "i8"),  # ordinal in the whole split, faulty records counted: keys the record's random draws
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
        ("whole", "u1"),  # 1 where the image begins and ends as its format says: see `ImageHeader.whole`
    ]
)
_HEADER_COLUMNS = ("image_offset", "image_length", "label", "height", "width", "orientation", "format", "whole")
_SET = "Set `"  # begins the way out of a wrong key
MAX_PIXELS = 178_956_970  # beyond this Pillow too takes an image for an attack: twice its MAX_IMAGE_PIXELS


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Which features of an Example are the image and its label, and what an image may be.

    Attributes:
        image_key: a bytes feature with one encoded image.
        label_key: an int64 feature with one value; None where there are no labels, which then read 0.
        label_offset: what the files call the first class; it is subtracted. 1 for ImageNet's `image/class/label`.
        max_pixels: most that an image's header may claim. A few bytes can claim 4 billion, and a decoder would
            allocate them.
    """

    image_key: str = "image"
    label_key: str | None = "label"
    label_offset: int = 0
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.max_pixels <= 0:
            raise ValueError(f"`max_pixels` must be positive. Received: max_pixels={self.max_pixels!r}")


class Fault(NamedTuple):
    """A record that a scan found unusable.

    Attributes:
        shard: place of its file in `Records.shards`.
        id: as the sound records' `id`; in the scan of one shard, its place there.
        offset: of the frame in the shard, bytes.
        reason: what is wrong, without the place.
    """

    shard: int
    id: int
    offset: int
    reason: str


class Scan(NamedTuple):
    """What is in one shard. `id` is the place in the shard, faulty records counted; `shard` is left at 0."""

    table: Table
    faults: list[Fault]

    def __len__(self) -> int:
        return len(self.table) + len(self.faults)


def scan_shard(path: Path, schema: Schema, on_error: OnFault = "raise") -> Scan:
    """The records of one shard, from the cache where it holds.

    Raises:
        RecordError: the shard is no TFRecord file; with `on_error="raise"`, also the first unusable record.
    """
    kind = f"headers\0{schema.image_key}\0{schema.label_key}"
    now = cache.fingerprint(path)
    scan = _unpacked(cache.load(path, kind, now))
    if scan is None:
        scan = _scan(path, schema, on_error)
        cache.store(path, kind, now, _packed(scan))
    scan = _set_large_aside(scan, schema.max_pixels)
    if on_error == "raise" and scan.faults:
        raise refusal(path, scan.faults[0])
    return scan


def refusal(path: Path, fault: Fault, of: str = "the shard") -> RecordError:
    """The error over an unusable record, with its place and the way out; a wrong key's reason has a better one."""
    if _SET in fault.reason:
        return RecordError(path, fault.offset, fault.reason)
    way_out = 'Leave such records out with on_error="skip"; `dali-tf verify` lists them all.'
    return RecordError(path, fault.offset, f"{fault.reason.rstrip('.')} (record {fault.id} of {of}). {way_out}")


def _scan(path: Path, schema: Schema, on_error: OnFault) -> Scan:
    with open_pages(path) as data:
        offsets, lengths = tfrecord.frames(path, data)
        rows, faults = list[tuple[int, ...]](), list[Fault]()
        reasons = dict[str, str]()  # of a wrong key there is one for each record: keep it once
        for place, (at, length) in enumerate(zip(offsets.tolist(), lengths.tolist(), strict=True)):
            try:
                rows.append(_headers(path, data, at, length, schema))
            except RecordError as error:
                fault = Fault(0, place, at, reasons.setdefault(error.reason, error.reason))
                if on_error == "raise":  # now: with a wrong key, the rest of the shard would only cost time
                    raise refusal(path, fault) from None
                faults.append(fault)
    sound = np.delete(np.arange(len(offsets)), [fault.id for fault in faults])
    table = np.zeros(len(sound), RECORD)
    table["id"], table["offset"], table["length"] = sound, offsets[sound], lengths[sound]
    for name, column in zip_longest(_HEADER_COLUMNS, zip(*rows, strict=True), fillvalue=()):
        table[name] = column
    return Scan(table, faults)


def _packed(scan: Scan) -> cache.Arrays:
    """As plain arrays: the cache unpickles nothing."""
    reasons, codes = np.unique(np.array([fault.reason for fault in scan.faults], np.str_), return_inverse=True)
    places = [[fault.id, fault.offset] for fault in scan.faults]
    faults = np.column_stack([np.array(places, np.int64).reshape(-1, 2), codes])
    return {"table": scan.table, "faults": faults, "reasons": reasons}


def _unpacked(arrays: cache.Arrays | None) -> Scan | None:
    """None where another release left something else."""
    if arrays is None or arrays.keys() != {"table", "faults", "reasons"} or arrays["table"].dtype != RECORD:
        return None
    reasons = arrays["reasons"].tolist()
    return Scan(
        arrays["table"], [Fault(0, id, offset, reasons[code]) for id, offset, code in arrays["faults"].tolist()]
    )


def _set_large_aside(scan: Scan, max_pixels: int) -> Scan:
    """After the cache, whose entries hold for any limit."""
    table = scan.table
    large = table["height"].astype(np.int64) * table["width"] > max_pixels
    if not large.any():
        return scan
    faults = [
        Fault(
            0,
            int(row["id"]),
            int(row["offset"]),
            f"the image claims {row['height']}x{row['width']} pixels, more than `max_pixels`={max_pixels}. Raise "
            "`max_pixels` if that is so.",
        )
        for row in table[large]
    ]
    return Scan(table[~large], sorted(scan.faults + faults))


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
    return image, image_end - image, label, header.height, header.width, header.orientation, kind, header.whole


class _SchemaError(ValueError):
    """A record without the features the schema asks for."""


def _feature(features: dict[bytes, example.Feature], key: str, kind: str, argument: str) -> example.Feature:
    feature = features.get(key.encode())
    if feature is None:
        there = ", ".join(sorted(repr(k.decode("utf-8", "replace")) for k in features)) or "none"
        raise _SchemaError(f"no feature {key!r}. The record's keys: {there}. {_SET}{argument}` to one of them.")
    if feature.kind != kind:
        raise _SchemaError(f"feature {key!r} must be {kind}; it is {feature.kind}. {_SET}{argument}` to another key.")
    return feature


def _image(data: Buffer, features: dict[bytes, example.Feature], key: str) -> tuple[int, int]:
    values = example.bytes_values(data, _feature(features, key, "bytes", "image_key"))
    if len(values) != 1:
        raise _SchemaError(f"feature {key!r} must hold one image; it holds {len(values) or 'no'} values.")
    start, end = values[0]
    if start == end:
        raise _SchemaError(f"feature {key!r} must hold one image; it is empty.")
    return start, end


def _label(data: Buffer, features: dict[bytes, example.Feature], key: str | None) -> int:
    if key is None:
        return 0
    values = example.int64_values(data, _feature(features, key, "int64", "label_key"))
    if len(values) != 1:
        count = len(values) if len(values) <= 16 else "more than 16"
        raise _SchemaError(f"feature {key!r} must hold one label; it holds {count or 'no'} values.")
    return values[0]
