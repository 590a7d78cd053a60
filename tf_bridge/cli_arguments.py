"""The arguments that commands share: each flag has one meaning, one default's rule and one help text, here."""

import argparse
import math
from pathlib import Path
from typing import TypeAlias

Group: TypeAlias = "argparse._ArgumentGroup"

PRESETS = ("crop", "imagenet")


class Default(int):
    """A number that the user did not give."""


def data_group(parser: argparse.ArgumentParser) -> Group:
    """The data."""
    data = parser.add_argument_group("data")
    data.add_argument(
        "data", nargs="?", help="TFDS name (imagenette/320px), TFDS folder, or TFRecord glob; default: embedded"
    )
    data.add_argument("--split", default="train", help="TFDS split to take, such as train[:90%%]")
    data.add_argument("--data-dir", default=None, help="where TFDS keeps its data sets")
    data.add_argument("--image-key", default=None, help="feature with the image (ImageNet: image/encoded)")
    data.add_argument("--label-key", default=None, help="feature with the label (ImageNet: image/class/label)")
    data.add_argument("--label-offset", type=int, default=0, help="what the files call the first class (ImageNet: 1)")
    parser.set_defaults(validation="none")
    return data


def validation_argument(data: Group) -> None:
    """What to validate on."""
    data.add_argument(
        "--validation",
        default=None,
        help="TFDS split (default: validation, or test) or TFRecord glob to validate on; 'none' to skip",
    )


def pipeline_group(parser: argparse.ArgumentParser) -> Group:
    """What is done to the images, and with how many threads."""
    pipeline = parser.add_argument_group("pipeline")
    recipe_argument(pipeline)
    size_argument(pipeline, 160)
    pipeline.add_argument("--dtype", choices=("uint8", "float16", "float32"), default="uint8", help="of the batches")
    threads_argument(pipeline)
    return pipeline


def recipe_argument(group: Group) -> None:
    """Which preset, or the user's own recipe."""
    group.add_argument(
        "--recipe",
        type=_recipe,
        default="crop",
        help="crop: random crop; imagenet: random resized crop and flip; "
        "preview and parity also take your own dali_pipe.Recipe as MODULE:NAME or FILE.py:NAME",
    )


def size_argument(group: Group, pixels: int) -> None:
    """How large the crop is."""
    group.add_argument("--size", type=positive, default=Default(pixels), help="pixels of the crop's side")


def threads_argument(group: Group) -> None:
    """How many threads."""
    group.add_argument("--threads", type=positive, default=None, help="CPU threads; default: one for each core")


def batch_size_argument(group: Group) -> None:
    """How many images a step takes."""
    group.add_argument("--batch-size", type=positive, default=64, help="images a step, over all devices")


def seed_argument(group: Group) -> None:
    """What randomness follows from."""
    group.add_argument("--seed", type=int, default=0, help="of all that is random")


def fresh_argument(group: Group) -> None:
    """Whether what is in the cache counts."""
    group.add_argument("--fresh", action="store_true", help="look again at what was looked at before")


def json_argument(group: "Group | argparse.ArgumentParser") -> None:
    """For programs that read what a command prints."""
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")


def policy_group(parser: argparse.ArgumentParser) -> None:
    """What becomes of bad records."""
    group = parser.add_argument_group("bad records")
    group.add_argument(
        "--on-error",
        choices=("raise", "skip", "repair"),
        default="raise",
        help="raise: stop at one; skip: look at all once and leave them out; repair: keep what some decoder reads",
    )
    group.add_argument("--max-bad", type=_fraction, default=0.01, help="most that may be left out, 0 to 1")


def engine_arguments(pipeline: Group) -> None:
    """Who does the work, and where."""
    pipeline.add_argument("--engine", choices=("auto", "dali", "tfdata"), default="auto", help="who does the work")
    pipeline.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto", help="where it is done")


def sample_group(parser: argparse.ArgumentParser, count: int, output: Path) -> Group:
    """Which images, and the picture of them."""
    sample = parser.add_argument_group("sample")
    sample.add_argument("--count", type=positive, default=count, help="images, at most")
    seed_argument(sample)
    sample.add_argument("--epoch", type=natural, default=0, help="which epoch of that seed, counted from 0")
    picture_argument(sample, output)
    return sample


def picture_argument(group: Group, output: Path) -> None:
    """Where the picture goes."""
    group.add_argument("--output", type=_png, default=output, help="PNG file to draw")


def positive(text: str) -> int:
    """An argument's type: an int from 1 on."""
    value = int(text) if text.isdigit() else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be a positive int. Received: {text!r}")
    return value


def _recipe(text: str) -> str:
    where, _, name = text.rpartition(":")
    if text not in PRESETS and not (where and name):
        raise argparse.ArgumentTypeError(
            f"must be {', '.join(PRESETS)}, MODULE:NAME or FILE.py:NAME. Received: {text!r}"
        )
    return text


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a fraction, 0 to 1. Received: {text!r}")
    return value


def seconds(text: str) -> float:
    """An argument's type: a time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0. Received: {text!r}")
    return value


def natural(text: str) -> int:
    """An argument's type: an int from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0 or a positive int. Received: {text!r}")
    return int(text)


def _png(text: str) -> Path:
    if Path(text).suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"must be a file that ends in .png. Received: {text!r}")
    return Path(text)
