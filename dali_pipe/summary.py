"""A survey in figures: what `dali-tf inspect` prints, as plain values for `json.dumps`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dali_pipe.duplicates import Group
from dali_pipe.image_header import FORMATS
from dali_pipe.scan import RECORD
from dali_pipe.survey import LOOK, PROCESSES, Field, Survey, joined

PERCENTILES = (0, 1, 25, 50, 75, 99, 100)
_COLORS = {1: " gray", 4: " CMYK"}
_SUFFIXES = {"jpeg": ".jpg", "tiff": ".tif"}


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """One split in figures.

    Attributes:
        shards: files.
        records: sound ones.
        bad: unusable ones.
        bytes: of all its files.
        shard_records: fewest, median and most records in a file.
        shard_bytes: smallest, median and largest file.
        classes: records of each class, from class 0.
        sorted_by_class: how much likelier a record's neighbour has its label than in a mixed file: 0 mixed, 1 sorted.
    """

    shards: int
    records: int
    bad: int
    bytes: int
    shard_records: tuple[float, float, float]
    shard_bytes: tuple[float, float, float]
    classes: tuple[int, ...]
    sorted_by_class: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A data set in figures.

    Attributes:
        splits: by name.
        image_key: feature with the image.
        label_key: feature with the label; None where there is none.
        fields: every feature by key.
        class_names: where the data set gives them.
        images: percentiles (`PERCENTILES`) of width, height, shorter side (pixels), aspect (width / height), bytes.
        formats: images of each format, the most frequent first.
        orientations: images of each EXIF orientation; 1 is upright.
        duplicates: groups of like images.
        problems: shards that cannot be read, or hold something else than they should, and why.
        outside: labels below 0, or without a name where others have one.
    """

    splits: Mapping[str, SplitSummary]
    image_key: str
    label_key: str | None
    fields: Mapping[str, Field]
    class_names: Sequence[str]
    images: Mapping[str, tuple[float, ...]]
    formats: Mapping[str, int]
    orientations: Mapping[int, int]
    duplicates: tuple[Group, ...]
    problems: Mapping[str, str]
    outside: int

    @property
    def records(self) -> int:
        """Sound records."""
        return sum(split.records for split in self.splits.values())

    @property
    def bad(self) -> int:
        """Unusable records."""
        return sum(split.bad for split in self.splits.values())

    @property
    def classes(self) -> NDArray[np.int64]:
        """Records of each class, splits together."""
        counts = [split.classes for split in self.splits.values()]
        longest = max(map(len, counts), default=0)
        padded = [np.pad(np.array(count, np.int64), (0, longest - len(count))) for count in counts]
        total: NDArray[np.int64] = np.sum(padded, axis=0, dtype=np.int64)
        return total


def summarize(survey: Survey, duplicates: tuple[Group, ...]) -> Summary:
    """The figures of a survey."""
    table = np.concatenate([np.empty(0, RECORD), *(shard.table for shard in survey.shards)])
    looks = np.concatenate([np.empty(0, LOOK), *(shard.looks for shard in survey.shards)])
    labels = table["label"] - survey.schema.label_offset
    names = len(survey.classes)
    return Summary(
        splits={split: _split(survey, split) for split in survey.splits},
        image_key=survey.schema.image_key,
        label_key=survey.schema.label_key,
        fields=joined([shard.fields for shard in survey.shards]),
        class_names=survey.classes,
        images=_percentiles(table),
        formats=_formats(table, looks),
        orientations=_counts(table["orientation"]),
        duplicates=duplicates,
        problems={str(shard.source.path): shard.problem for shard in survey.shards if shard.problem},
        outside=int(((labels < 0) | ((labels >= names) & (names > 0))).sum()),
    )


def _split(survey: Survey, split: str) -> SplitSummary:
    shards = survey.of(split)
    labels = np.concatenate([shard.table["label"] for shard in shards]) - survey.schema.label_offset
    counts = np.bincount(labels[labels >= 0], minlength=len(survey.classes))
    return SplitSummary(
        shards=len(shards),
        records=sum(len(shard.table) for shard in shards),
        bad=sum(shard.bad for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        shard_records=_range([len(shard.table) + shard.bad for shard in shards]),
        shard_bytes=_range([shard.bytes for shard in shards]),
        classes=tuple(counts.tolist()) if survey.schema.label_key else (),
        sorted_by_class=_sortedness(labels),
    )


def _range(values: Sequence[int]) -> tuple[float, float, float]:
    return float(min(values)), float(np.median(values)), float(max(values))


def _sortedness(labels: NDArray[np.int64]) -> float:
    """How often neighbours are alike, on a scale from what chance gives (0) to always (1)."""
    if len(labels) < 2:
        return 0.0
    alike = float(np.mean(labels[1:] == labels[:-1]))
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    chance = float((shares**2).sum())
    return 0.0 if chance == 1 else max(0.0, (alike - chance) / (1 - chance))


def _percentiles(table: NDArray[np.void]) -> dict[str, tuple[float, ...]]:
    if not len(table):
        return {}
    height, width = table["height"].astype(np.float64), table["width"].astype(np.float64)
    columns = {
        "width": width,
        "height": height,
        "shorter side": np.minimum(height, width),
        "aspect": width / height,
        "bytes": table["image_length"].astype(np.float64),
    }
    return {name: tuple(np.percentile(values, PERCENTILES).tolist()) for name, values in columns.items()}


def _counts(values: NDArray[np.uint8]) -> dict[int, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _formats(table: NDArray[np.void], looks: NDArray[np.void]) -> dict[str, int]:
    codes = np.stack([table["format"], looks["process"], looks["channels"], looks["named"]], axis=1)
    kinds, counts = np.unique(codes, axis=0, return_counts=True)
    named = dict[str, int]()
    for kind, count in sorted(zip(kinds.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1]):
        name = format_name(*kind)
        named[name] = named.get(name, 0) + count
    return named


def format_name(kind: int, process: int, channels: int, named: int) -> str:
    """Such as `JPEG progressive CMYK`, or `PNG named .jpg`."""
    words = FORMATS[kind].upper()
    if process:
        words += f" {PROCESSES[process]}{_COLORS.get(channels, '')}"
    if named and named - 1 != kind:
        words += f" named {_SUFFIXES.get(FORMATS[named - 1], '.' + FORMATS[named - 1])}"
    return words
