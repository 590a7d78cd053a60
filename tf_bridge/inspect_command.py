"""`dali-tf inspect`: what is in a data set, as tables, JSON and a page of plots, and what to mind."""

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from dali_pipe import advice, sources, survey, tfds_source
from dali_pipe.advice import Advice, Case
from dali_pipe.device import available_cores
from dali_pipe.duplicates import Group, duplicates, suspects
from dali_pipe.records import matching
from dali_pipe.scan import Schema
from dali_pipe.summary import PERCENTILES, Summary, summarize
from dali_pipe.survey import Source, Survey
from dali_pipe.tfrecord import RecordError
from tf_bridge import inspect_text
from tf_bridge.inspect_features import Declared, declared
from tf_bridge.locate import embedded, is_files


def run(arguments: argparse.Namespace) -> int:
    """Look, print and draw as the arguments say; returns the exit code."""
    found = look(arguments)
    features = declared(_dataset(arguments).folder) if _is_tfds(arguments) else {}
    summary = summarize(found, _duplicates(found))
    data = _quoted(arguments, found.schema)
    case = Case(summary=summary, size=arguments.size, smaller=_smaller(found, arguments.size), data=data)
    advised = advice.advice(case)
    title = f"{arguments.data or 'embedded data set'}, {arguments.split}" if _is_tfds(arguments) else arguments.data
    if summary.records:
        from tf_bridge import inspect_page  # matplotlib takes a second to load

        inspect_page.draw(found, summary, advised, title, arguments.size, arguments.output)
    if arguments.json:
        print(json.dumps(as_json(summary, features, advised, arguments), indent=2))
    else:
        print(inspect_text.text(summary, features, advised, sys.stdout))
        if summary.records:
            print(f"\nSaved:   {arguments.output}")
    return 0


def look(arguments: argparse.Namespace) -> Survey:
    """The survey of the data that the arguments name.

    Raises:
        FileNotFoundError: there are no such data.
        ValueError: no such split, or nobody can tell which feature is the image.
    """
    wanted, schema, classes = _wanted(arguments)
    threads = arguments.threads or available_cores()
    total = survey.PASSES * sum(source.path.stat().st_size for source in wanted if source.path.is_file())
    timed = "{l_bar}{bar}| {elapsed}<{remaining}"  # not the bytes, which count several times
    with tqdm(total=total, desc="Looking", leave=False, disable=None, bar_format=timed) as bar:
        return survey.survey(wanted, schema, classes, threads, bar.update, arguments.fresh)


def _is_tfds(arguments: argparse.Namespace) -> bool:
    return arguments.data is None or not is_files(arguments.data)


def _dataset(arguments: argparse.Namespace) -> tfds_source.Dataset:
    return tfds_source.read_metadata(tfds_source.find(arguments.data or embedded(), arguments.data_dir))


def _wanted(arguments: argparse.Namespace) -> tuple[list[Source], Schema, Sequence[str]]:
    if not _is_tfds(arguments):
        given = {"train": arguments.data, "validation": arguments.validation}
        patterns = {split: pattern for split, pattern in given.items() if pattern not in (None, "none")}
        files = [Source(split, path) for split, pattern in patterns.items() for path in matching(pattern)]
        return files, _schema(files, arguments), ()
    dataset = _dataset(arguments)
    specs = [arguments.split, arguments.validation]
    shards = [s for spec in specs if spec not in (None, "none") for s in sources.of_splits(dataset, spec)]
    if not shards:
        raise ValueError(f"`--split` must name records. Received: {arguments.split!r}, which has none")
    try:
        schema = dataset.schema(arguments.image_key, arguments.label_key, arguments.label_offset)
    except ValueError:  # the metadata do not settle it
        schema = _schema(shards, arguments)
    return shards, schema, dataset.classes(schema.label_key)


def _schema(shards: Sequence[Source], arguments: argparse.Namespace) -> Schema:
    """From the first shard that shows it."""
    fault: Exception | None = None
    for source in shards:
        try:
            keys = arguments.image_key, arguments.label_key, arguments.label_offset
            return sources.guess_schema(source.path, *keys)
        except (RecordError, OSError) as error:
            fault = fault or error
    raise fault or FileNotFoundError("`data` must match at least one TFRecord file")


def _duplicates(found: Survey) -> tuple[Group, ...]:
    suspected = suspects(found)
    if not (count := len(suspected[0])):
        return ()
    with tqdm(total=count, desc="Comparing", unit=" images", leave=False, disable=None) as bar:
        return duplicates(found, suspected, bar.update)


def _smaller(found: Survey, size: int) -> int:
    return sum(int((np.minimum(s.table["height"], s.table["width"]) < size).sum()) for s in found.shards)


def _quoted(arguments: argparse.Namespace, schema: Schema) -> str:
    """The data as `dali-tf verify` is to be told them: what was given, and the keys that were found in plain files."""
    flags = {name: getattr(arguments, name) for name in ("data_dir", "image_key", "label_key", "label_offset")}
    flags["split"] = None if arguments.split == "all" else arguments.split
    if not _is_tfds(arguments):
        flags |= {key: getattr(schema, key) for key in ("image_key", "label_key")}
    words = [arguments.data] if arguments.data else []
    given = ((f"--{name.replace('_', '-')}", str(value)) for name, value in flags.items() if value)
    return shlex.join([*words, *(word for pair in given for word in pair)])


def as_json(
    summary: Summary, features: Mapping[str, Declared], advised: Sequence[Advice], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Everything the text says and more, for `json.dumps`."""
    groups = [[copy._asdict() for copy in group.copies] for group in summary.duplicates]
    return {
        "data": arguments.data,
        "records": summary.records,
        "bad": summary.bad,
        "splits": {name: dataclasses.asdict(split) for name, split in summary.splits.items()},
        "image_key": summary.image_key,
        "label_key": summary.label_key,
        "features": {key: field._asdict() for key, field in summary.fields.items()},
        "declared": {key: feature._asdict() for key, feature in features.items()},
        "classes": list(summary.class_names),
        "percentiles": list(PERCENTILES),
        "images": {name: list(values) for name, values in summary.images.items()},
        "formats": dict(summary.formats),
        "orientations": dict(summary.orientations),
        "duplicates": groups,
        "problems": dict(summary.problems),
        "advice": [dataclasses.asdict(item) for item in advised],
        "picture": str(arguments.output) if summary.records else None,
    }
