"""Which shards a data set has and where its images and labels are, found out without reading every record."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dali_pipe import example, tfds_source, tfrecord
from dali_pipe.image_header import UnknownImage, read_header
from dali_pipe.pages import Buffer, open_pages
from dali_pipe.scan import Schema
from dali_pipe.survey import Source
from dali_pipe.tfds_source import Dataset

_LABELS = re.compile(r"label|class|target|category", re.IGNORECASE)


def of_splits(dataset: Dataset, spec: str) -> list[Source]:
    """The shards of a split string, split by split.

    Raises:
        ValueError: as `tfds_source.slices`.
    """
    return [source for split, low, high in tfds_source.slices(dataset, spec) for source in _within(split, low, high)]


def _within(split: tfds_source.Split, low: int, high: int) -> Iterator[Source]:
    first = 0
    for path, length in zip(split.shards, split.lengths, strict=True):
        start, end = max(low, first), min(high, first + length)
        if start < end:
            yield Source(split.name, path, start - first, end - first, first, length)
        first += length


def guess_schema(path: Path, image_key: str | None, label_key: str | None, label_offset: int) -> Schema:
    """Where image and label are in a shard: as given, else as its first record that is one looks.

    Raises:
        RecordError: the shard is no TFRecord file, or no feature of its first record is an image.
    """
    with open_pages(path) as data:
        offsets, lengths = tfrecord.frames(path, data)
        at, length = int(offsets[0]), int(lengths[0])
        try:
            features = example.features(data, at + tfrecord.HEADER, at + length - tfrecord.FOOTER)
        except example.MalformedExample as error:
            raise tfrecord.RecordError(path, at, str(error)) from None
        image = image_key or next(_images(data, features), None)
        label = label_key or next(_labels(data, features), None)
    if image is None:
        there = ", ".join(repr(key.decode("utf-8", "replace")) for key in features) or "none"
        reason = f"no feature is an image. The record's keys: {there}. Name one with --image-key."
        raise tfrecord.RecordError(path, at, reason)
    return Schema(image_key=image, label_key=label, label_offset=label_offset)


def _images(data: Buffer, features: Mapping[bytes, example.Feature]) -> Iterator[str]:
    for key, feature in sorted(features.items()):
        values = example.bytes_values(data, feature) if feature.kind == "bytes" else []
        try:
            if len(values) == 1 and read_header(data, *values[0]):
                yield key.decode("utf-8", "replace")
        except UnknownImage:
            continue


def _labels(data: Buffer, features: Mapping[bytes, example.Feature]) -> Iterator[str]:
    """`label` before `image/class/label` before what else is called so."""
    for key, feature in sorted(features.items(), key=lambda item: (b"label" not in item[0], len(item[0]), item[0])):
        name = key.decode("utf-8", "replace")
        if feature.kind == "int64" and _LABELS.search(name) and example.count(data, feature) == 1:
            yield name
