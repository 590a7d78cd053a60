"""TFDS folders as `Records`: metadata, split strings, shards. Needs neither TFDS nor TensorFlow."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dali_pipe import records as records_lib
from dali_pipe.records import Fault, Records
from dali_pipe.scan import MAX_PIXELS, OnFault, Schema
from dali_pipe.tfrecord import RecordError
from dali_pipe.way_out import way_out

_NAME = re.compile(r"(?P<name>[A-Za-z]\w*)(/(?P<config>[\w+.\-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
_SPLIT = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[^\]]*)\])?")
_BOUND = re.compile(r"(?P<value>-?[\d_.]+)(?P<unit>%|shard)?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NO_KINDS = ("pythonClassName", "description", "valueRange")  # a feature's JSON beside the key that is its kind
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"  # TFDS's default
_SPLITS_GUIDE = "See https://www.tensorflow.org/datasets/splits."


class DatasetNotFoundError(FileNotFoundError):
    """No prepared TFDS folder is where one was looked for."""


@dataclass(frozen=True)
class Split:
    """One split of a data set: its files and how many records each holds."""

    name: str
    shards: tuple[Path, ...]
    lengths: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Dataset:
    """The metadata of a prepared TFDS data set.

    Attributes:
        folder: where `dataset_info.json` is.
        splits: by name, in the order of the metadata.
        features: top-level and nested features (`"a/b"`) that are an image or could be a label: their kind by key.
        supervised: `(image key, label key)` as the data set's author set them, or None.
    """

    folder: Path
    splits: Mapping[str, Split]
    features: Mapping[str, str]
    supervised: tuple[str, str] | None

    def schema(
        self,
        image_key: str | None = None,
        label_key: str | None = None,
        label_offset: int = 0,
        max_pixels: int = MAX_PIXELS,
    ) -> Schema:
        """Where image and label are: as given, else the supervised pair, else the only candidate.

        Raises:
            ValueError: the keys are not given and the metadata does not settle them.
        """
        image, label = self.supervised or (None, None)
        if image is not None and self.features.get(image) != "image":
            image = label = None  # a supervised pair such as (text, label) says nothing here
        return Schema(
            image_key=image_key or image or self._only("image", "image_key"),
            label_key=label_key or label or self._only("classLabel", "label_key"),
            label_offset=label_offset,
            max_pixels=max_pixels,
        )

    def _only(self, kind: str, argument: str) -> str:
        candidates = [key for key, of in self.features.items() if of == kind]
        if len(candidates) != 1:
            raise ValueError(
                f"`{argument}` must be given where features.json has not exactly one {kind}. {self.folder} has: "
                f"{', '.join(f'{k} ({v})' for k, v in self.features.items()) or 'no features.json that can be read'}"
            )
        return candidates[0]

    def classes(self, label_key: str | None) -> tuple[str, ...]:
        """Names of the classes, or () where the data set has none."""
        for joint in "-.":  # "a/b" is a-b where features nest, a.b where the key itself has the slash
            names = self.folder / f"{(label_key or '').replace('/', joint)}.labels.txt"
            if names.is_file():
                return tuple(name.strip() for name in names.read_text(encoding="utf-8").split("\n") if name.strip())
        return ()


def find(data: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a prepared data set.

    Args:
        data: the folder itself, or a TFDS name: `name`, `name/config`, `name/config:1.0.0`. Without a version the
            highest one there is counts.
        data_dir: where TFDS keeps data sets: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.

    Raises:
        DatasetNotFoundError: says where it looked and how to prepare the data set.
    """
    folder = Path(data).expanduser()
    if (folder / "dataset_info.json").is_file():
        return folder
    if folder.is_dir() and (versions := _versions(folder)):
        return versions[-1]
    root = Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    name = _NAME.fullmatch(os.fspath(data))
    if name:
        parent = root / name["name"] / (name["config"] or "")
        if name["version"] and (parent / name["version"] / "dataset_info.json").is_file():
            return parent / name["version"]
        if not name["version"] and (versions := _versions(parent)):
            return versions[-1]
    prepare = f"prepare it once with tfds.builder({os.fspath(data)!r}).download_and_prepare()"
    hint = way_out(os.fspath(data)) or (prepare if name else "check the path")
    raise DatasetNotFoundError(
        f"`data` must be a TFDS folder (with dataset_info.json) or the name of a prepared data set; {hint}. "
        f"Received: {os.fspath(data)!r}, looked in {folder} and {root}"
    )


def _versions(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    found = [p for p in parent.iterdir() if _VERSION.fullmatch(p.name) and (p / "dataset_info.json").is_file()]
    return sorted(found, key=lambda p: [int(n) for n in p.name.split(".")])


def read_metadata(folder: Path) -> Dataset:
    """The metadata of the data set in `folder`.

    Raises:
        ValueError: the metadata cannot be read, or the data are not TFRecords.
    """
    info = _read_json(folder / "dataset_info.json")
    features_file = folder / "features.json"
    features = _read_json(features_file) if features_file.is_file() else {}
    try:
        return _dataset(folder, info, features)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: the metadata must be what TFDS writes: {error!r}") from error


def _dataset(folder: Path, info: Mapping[str, Any], features: Mapping[str, Any]) -> Dataset:
    kind = info.get("fileFormat", "tfrecord")
    if kind != "tfrecord":
        raise ValueError(
            f"{folder}: the file format must be tfrecord; it is {kind}. Prepare it with TFDS's default format."
        )
    items = info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
    keys = [item.get("featureKey") for item in items]
    return Dataset(
        folder=folder,
        splits={split["name"]: _split(folder, info, split) for split in info.get("splits", [])},
        features=dict(_features(features)),
        supervised=(keys[0], keys[1]) if len(keys) == 2 and all(keys) else None,
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: must be JSON as TFDS writes it: {error}") from None


def _features(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, feature in node.get("featuresDict", {}).get("features", {}).items():
        if "featuresDict" in feature:
            yield from _features(feature, f"{prefix}{key}/")
        else:
            kinds = [kind for kind in feature if kind not in _NO_KINDS]
            yield f"{prefix}{key}", kinds[0] if kinds else "unknown"


def _split(folder: Path, info: Mapping[str, Any], split: Mapping[str, Any]) -> Split:
    lengths = tuple(int(n) for n in split.get("shardLengths", []))
    template = split.get("filepathTemplate") or _TEMPLATE
    shards = []
    for index in range(len(lengths)):
        name = template
        for variable, value in {
            "DATASET": info["name"],
            "SPLIT": split["name"],
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": f"{index:05d}",
            "NUM_SHARDS": f"{len(lengths):05d}",
            "SHARD_X_OF_Y": f"{index:05d}-of-{len(lengths):05d}",
        }.items():
            name = name.replace(f"{{{variable}}}", value)  # never str.format: the template is somebody's input
        if Path(name).name != name or name in ("", ".", ".."):
            raise ValueError(
                f"{folder}: a shard must lie in its data set's folder. Received: filepathTemplate={template!r}"
            )
        shards.append(folder / name)
    return Split(split["name"], tuple(shards), lengths)


def slices(dataset: Dataset, spec: str) -> list[tuple[Split, int, int]]:
    """`(split, from, to)` of each part of a split string, meaning what TFDS means by it.

    Raises:
        ValueError: not a split string, no such split, or a slice beyond its end.
    """
    parts = []
    for part in re.split(r"\s*\+\s*", spec.strip()):
        match = _SPLIT.fullmatch(part)
        if not match:
            raise ValueError(
                f"`split` must read like 'train[:80%]' or 'train+validation'. {_SPLITS_GUIDE} Received: {spec!r}"
            )
        if match["name"] == "all" and "all" not in dataset.splits:
            if match["slice"] is not None:
                raise ValueError(f"`split` must not slice 'all', but the splits it stands for. Received: {spec!r}")
            parts += [(split, 0, len(split)) for split in dataset.splits.values()]
            continue
        if match["name"] not in dataset.splits:
            there = ", ".join(dataset.splits) or "none"
            raise ValueError(f"`split` must name a split of {dataset.folder}. It has: {there}. Received: {spec!r}")
        split = dataset.splits[match["name"]]
        parts.append((split, *_bounds(match["slice"], split, spec)))
    return parts


def _bounds(text: str | None, split: Split, spec: str) -> tuple[int, int]:
    """First record and the one after the last."""
    if text is None:
        return 0, len(split)
    ends = [_BOUND.fullmatch(end) if end else None for end in text.split(":")]
    units = {end["unit"] or "" for end in ends if end}
    shard_alone = len(ends) == 1 and units == {"shard"}
    malformed = any(end is None and raw for end, raw in zip(ends, text.split(":"), strict=True))
    if malformed or len(units) != 1 or (len(ends) != 2 and not shard_alone):
        raise ValueError(f"`split` must slice as [from:to] in records, % or shards. {_SPLITS_GUIDE} Received: {spec!r}")
    unit = units.pop()
    try:
        values = [None if end is None else _value(end["value"], unit) for end in ends]
    except ValueError:
        raise ValueError(
            f"`split` must slice by numbers; only % takes fractions. {_SPLITS_GUIDE} Received: {spec!r}"
        ) from None
    if shard_alone:
        first = int(values[0] or 0)
        values = [first, first + 1 or len(split.lengths)]
    low, high = (_absolute(value, unit, split, end) for value, end in zip(values, (0, len(split)), strict=True))
    if max(abs(low), abs(high)) > len(split):
        raise ValueError(f"`split` must stay within {split.name}'s {len(split)} records. Received: {spec!r}")
    low, high = (bound + len(split) if bound < 0 else bound for bound in (low, high))
    if low > high:
        raise ValueError(f"`split` must not end before it starts. Received: {spec!r}")
    return low, high


def _value(text: str, unit: str) -> float:
    return float(text) if unit == "%" else int(text)


def _absolute(value: float | None, unit: str, split: Split, default: int) -> int:
    if value is None:
        return default
    if unit == "%":
        if abs(value) > 100:
            raise ValueError(f"`split` must stay within {split.name}'s 100 %. Received: {value:g}%")
        return round(value * len(split) / 100.0)  # TFDS's "closest"
    if unit == "shard":
        count = len(split.lengths)
        if not -count <= value <= count:
            raise ValueError(f"`split` must stay within {split.name}'s {count} shards. Received: shard {value}")
        return sum(split.lengths[: math.trunc(value)])
    return math.trunc(value)


def open_split(dataset: Dataset, spec: str, schema: Schema, on_error: OnFault = "raise") -> Records:
    """The records of a split string, in file order: what TFDS reads with `interleave_cycle_length=1`.

    A record's id is its ordinal in its split; in a sum of splits, those of later splits count on. Slices are cut before
    anything is left out.

    Args:
        dataset: whose.
        spec: as TFDS spells it.
        schema: where image and label are.
        on_error: "raise", or "skip" to leave unusable records out and list the slices' in `Records.faults`.

    Raises:
        ValueError: as `slices`.
        RecordError: a shard or, with `on_error="raise"`, a record is unusable, or a shard does not hold what the
            metadata say.
    """
    parts = slices(dataset, spec)
    wanted = list({split.name: split for split, _, _ in parts}.values())
    # TFDS writes no file for a shard of 0 records
    shards = [
        (path, count) for split in wanted for path, count in zip(split.shards, split.lengths, strict=True) if count
    ]
    missing = [path for path, _ in shards if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{missing[0]}: the shard is not there, but dataset_info.json names it. Prepare the data set again."
        )
    everything = records_lib.open_shards([path for path, _ in shards], schema, on_error)
    _check_counts(everything, [count for _, count in shards])
    first = dict(zip((s.name for s in wanted), np.cumsum([0, *map(len, wanted)]).tolist(), strict=False))
    spans = [(first[s.name] + low, first[s.name] + high) for s, low, high in parts]
    index = np.concatenate([np.arange(*np.searchsorted(everything.ids, span)) for span in spans])
    faults = tuple(fault for low, high in spans for fault in _between(everything.faults, low, high))
    return replace(everything.select(index), faults=faults, classes=dataset.classes(schema.label_key))


def _check_counts(records: Records, counts: list[int]) -> None:
    held = np.concatenate([records.table["shard"], np.array([fault.shard for fault in records.faults], np.int64)])
    for path, count, have in zip(
        records.shards, counts, np.bincount(held, minlength=len(counts)).tolist(), strict=True
    ):
        if have != count:
            raise RecordError(
                path, None, f"the shard holds {have} records; dataset_info.json says {count}. Prepare it again."
            )


def _between(faults: tuple[Fault, ...], low: int, high: int) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if low <= fault.id < high)
