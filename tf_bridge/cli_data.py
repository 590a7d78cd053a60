"""What the commands have in common: the data, recipes and engine that their arguments name."""

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

import dali_pipe as dp
from dali_pipe import records as records_lib
from dali_pipe import tfds_source
from dali_pipe.device import available_cores
from dali_pipe.scan import MAX_PIXELS, OnFault
from tf_bridge import own_recipe, policy, quiet
from tf_bridge.cli_arguments import PRESETS, Default
from tf_bridge.dataset import ImageDataset
from tf_bridge.locate import embedded, is_files


def recipes(arguments: argparse.Namespace) -> tuple[dp.Recipe, dp.Recipe]:
    """The presets for training and for evaluation.

    Raises:
        ValueError: it is no preset; one of the user's own has no other to evaluate with, and no twin in plain tf.data.
    """
    if arguments.recipe not in PRESETS:
        raise ValueError(
            f"`--recipe` must be {' or '.join(PRESETS)} here; preview and parity take your own. "
            f"Received: {arguments.recipe!r}"
        )
    make = {"crop": (dp.crop_train, dp.crop_eval), "imagenet": (dp.imagenet_train, dp.imagenet_eval)}
    train, evaluate = make[arguments.recipe]
    return train(arguments.size, arguments.dtype), evaluate(arguments.size, arguments.dtype)


def recipe(arguments: argparse.Namespace) -> dp.Recipe:
    """The recipe for training: a preset, or the user's own."""
    if arguments.recipe in PRESETS:
        return recipes(arguments)[0]
    if not isinstance(arguments.size, Default):
        raise ValueError(
            "`--size` must be left out with a recipe of your own, which has its size. "
            f"Received: --recipe={arguments.recipe} --size={arguments.size}"
        )
    return own_recipe.load(arguments.recipe).with_dtype(arguments.dtype)


def size(recipe: dp.Recipe) -> int | tuple[int, int]:
    """Of its images, as a crop takes it."""
    height, width, _ = recipe.output_shape
    return height if height == width else (height, width)


def title(arguments: argparse.Namespace, recipe: dp.Recipe) -> str:
    """What a picture shows."""
    return f"{arguments.data or 'embedded data set'}, {arguments.recipe} {size(recipe)}, {recipe.dtype}"


def engine(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `from_records` is to be told of who does the work."""
    return {"engine": arguments.engine, "device": arguments.device, "num_threads": arguments.threads}


def open_records(arguments: argparse.Namespace) -> tuple[dp.Records, dp.Records | None]:
    """The records of the data, and those to validate on where `arguments.validation` or the data set has some."""
    data, validation, on_fault = arguments.data, arguments.validation, _on_fault(arguments)
    if data is not None and is_files(data):
        records = _from_files(arguments, data)
        return records, None if validation in (None, "none") else _from_files(arguments, validation)
    dataset = tfds_source.read_metadata(tfds_source.find(data or embedded(), arguments.data_dir))
    keys = (arguments.image_key, arguments.label_key, arguments.label_offset, _max_pixels(arguments))
    schema = dataset.schema(*keys)
    records = tfds_source.open_split(dataset, arguments.split, schema, on_fault)
    if validation is None:
        validation = next((name for name in ("validation", "test") if name in dataset.splits), "none")
    return records, None if validation == "none" else tfds_source.open_split(dataset, validation, schema, on_fault)


def usable_records(arguments: argparse.Namespace, recipe: dp.Recipe) -> dp.Records:
    """The records that training with these `--on-error` and `--max-bad` would see."""
    records, _ = open_records(arguments)
    if arguments.on_error == "raise":
        return records  # of those that are looked at a bad one is met when its turn comes
    threads = arguments.threads or available_cores()
    with quiet.decoders(shown=arguments.verbose):
        return policy.apply(
            records, arguments.on_error, arguments.max_bad, engine="tfdata", exif=recipe.exif, num_threads=threads
        ).records


def _on_fault(arguments: argparse.Namespace) -> OnFault:
    """What to do over unusable records; commands without `--on-error` raise."""
    return policy.on_fault(getattr(arguments, "on_error", "raise"))


def _max_pixels(arguments: argparse.Namespace) -> int:
    return int(getattr(arguments, "max_pixels", MAX_PIXELS))


def _from_files(arguments: argparse.Namespace, files: str) -> dp.Records:
    schema = dp.Schema(
        image_key=arguments.image_key or "image",
        label_key=arguments.label_key or "label",
        label_offset=arguments.label_offset,
        max_pixels=_max_pixels(arguments),
    )
    return records_lib.from_files(files, schema, _on_fault(arguments))


def batches(dataset: ImageDataset) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """The dataset's next epoch, in numpy.

    Raises:
        RuntimeError: what the engine says of an image that it cannot do, in one line.
    """
    with plain_errors(f"{dataset.engine} on {dataset.device} stopped: "):
        for images, labels in dataset:
            yield images.numpy(), labels.numpy()


@contextmanager
def plain_errors(prefix: str = "") -> Iterator[None]:
    """Turns TensorFlow's errors, which are no subclass of Python's and pages long, into one line.

    Raises:
        RuntimeError: what went wrong: the record, where an engine names it.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise RuntimeError(f"{prefix}{_gist(error.message)}") from error


def _gist(message: str) -> str:
    """What went wrong, in one line, out of TensorFlow's nodes and tracebacks: our own error, or else DALI's."""
    if ours := re.search(r"RecordError: (.*?)(\nTraceback|$)", message, re.DOTALL):
        message = ours[1]
    elif "encountered:" in message:
        message = message.split("encountered:")[1].split("Current pipeline object")[0]
    elif "Graph execution error" in message:  # and then every line of Python that led there
        message = re.split(r"Node: '[^']*'\n", message)[-1]
    message = re.sub(r"\[\[.*?\]\]|\{\{.*?\}\}|\[Op:.*", "", message, flags=re.DOTALL)
    return " ".join(message.split())[:500]


def label_name(records: dp.Records, label: int) -> str:
    """The class's name, or its number where the data set has no names."""
    return records.classes[label] if 0 <= label < len(records.classes) else str(label)
