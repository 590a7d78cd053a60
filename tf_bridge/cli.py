"""The `dali-tf` command. Nothing here imports TensorFlow before a command needs it."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tf_bridge import train


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dali-tf", description="Keras training on JPEGs in TFRecords, decoded and cropped by NVIDIA DALI."
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show what TensorFlow and DALI say while starting")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _train_parser(commands)
    return parser


def _train_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "train",
        help="train a ResNet-18 with model.fit",
        description="Train a ResNet-18. Without arguments: on an embedded data set (ten photographs in many crops), "
        "small enough for two CPU cores. --size 224 --width 64 is the full network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "data", nargs="?", help="TFDS name (imagenette/320px), TFDS folder, or TFRecord glob; default: embedded"
    )
    data.add_argument("--split", default="train", help="TFDS split to train on, such as train[:90%%]")
    data.add_argument(
        "--validation",
        default=None,
        help="TFDS split (default: validation, or test) or TFRecord glob to validate on; 'none' to skip",
    )
    data.add_argument("--data-dir", default=None, help="where TFDS keeps its data sets")
    data.add_argument("--image-key", default=None, help="feature with the image (ImageNet: image/encoded)")
    data.add_argument("--label-key", default=None, help="feature with the label (ImageNet: image/class/label)")
    data.add_argument("--label-offset", type=int, default=0, help="what the files call the first class (ImageNet: 1)")

    pipeline = parser.add_argument_group("pipeline")
    pipeline.add_argument(
        "--recipe", choices=("crop", "imagenet"), default="crop", help="random crop, or random resized crop and flip"
    )
    pipeline.add_argument("--size", type=_positive, default=160, help="pixels of the crop's side")
    pipeline.add_argument("--dtype", choices=("uint8", "float16", "float32"), default="uint8", help="of the batches")
    pipeline.add_argument("--engine", choices=("auto", "dali", "tfdata"), default="auto", help="who does the work")
    pipeline.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto", help="where it is done")
    pipeline.add_argument("--threads", type=_positive, default=None, help="CPU threads; default: one for each core")

    training = parser.add_argument_group("training")
    training.add_argument("--batch-size", type=_positive, default=64, help="images a step")
    training.add_argument("--epochs", type=_positive, default=5, help="passes over the data")
    training.add_argument(
        "--width", type=_positive, default=16, help="channels of the first stage, a multiple of 16; the paper's is 64"
    )
    training.add_argument("--learning-rate", type=float, default=1e-3, help="Adam's, to begin with")
    training.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    training.add_argument("--mixed-precision", action="store_true", help="compute in float16 (GPU) or bfloat16 (CPU)")
    training.add_argument("--output", type=Path, default=Path("runs/latest"), help="folder for checkpoints and logs")
    parser.set_defaults(run=train.run)


def _positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be a positive int. Received: {text!r}")
    return value


def _quiet() -> None:
    """Silence start-up noise that no user can act on; must run before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 2 for a usage error, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.WARNING, format="%(message)s")
    if not arguments.verbose:
        _quiet()
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        if arguments.verbose:
            raise
        print(f"dali-tf: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
