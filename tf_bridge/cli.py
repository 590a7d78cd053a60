"""The `dali-tf` command. Nothing here imports TensorFlow before a command needs it."""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from tf_bridge.cli_parser import HelpFormatter, Parser, Version

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
Group: TypeAlias = "argparse._ArgumentGroup"


def parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="dali-tf", description="Keras training on JPEGs in TFRecords, decoded and cropped by NVIDIA DALI."
    )
    parser.add_argument("--version", action=Version, help="print the versions that matter for a bug report, and end")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what TensorFlow and DALI say while starting")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _train_parser(commands)
    _preview_parser(commands)
    _parity_parser(commands)
    _verify_parser(commands)
    _bench_parser(commands)
    _inspect_parser(commands)
    _doctor_parser(commands)
    _completion_parser(commands)
    return parser


def _command(
    commands: Commands, name: str, module: str, summary: str, description: str, *, frameworks: bool = True
) -> argparse.ArgumentParser:
    """A command's parser; the module's `run` does the work, and is imported only then.

    `frameworks`: whether it needs TensorFlow, and DALI where there is one.
    """

    def run(arguments: argparse.Namespace) -> int:
        if frameworks:
            import_module("tf_bridge").check_installed()
            if not arguments.verbose:
                _quiet()
        return int(import_module(module).run(arguments))

    parser = commands.add_parser(name, help=summary, description=description, formatter_class=HelpFormatter)
    parser.set_defaults(run=run)
    return parser


def _train_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "train",
        "tf_bridge.train",
        "train a ResNet-18 with model.fit",
        "Train a ResNet-18. Without arguments: on an embedded data set (ten photographs in many crops), "
        "small enough for two CPU cores. --size 224 --width 64 is the full network.",
    )
    _validation_argument(_data_group(parser))
    _engine_arguments(_pipeline_group(parser))
    _policy_group(parser)

    training = parser.add_argument_group("training")
    training.add_argument("--batch-size", type=_positive, default=64, help="images a step, over all devices")
    training.add_argument(
        "--strategy",
        choices=("one", "mirrored", "multiworker"),
        default="one",
        help="one device; all GPUs of this machine; or one worker of several, as TF_CONFIG or SLURM say",
    )
    training.add_argument("--epochs", type=_positive, default=5, help="passes over the data")
    training.add_argument(
        "--width", type=_positive, default=16, help="channels of the first stage, a multiple of 16; the paper's is 64"
    )
    training.add_argument("--learning-rate", type=float, default=1e-3, help="Adam's, to begin with")
    training.add_argument("--seed", type=int, default=0, help="of all that is random")
    training.add_argument("--mixed-precision", action="store_true", help="compute in float16 (GPU) or bfloat16 (CPU)")
    training.add_argument("--output", type=Path, default=Path("runs/latest"), help="folder for checkpoints and logs")
    training.add_argument("--resume", action="store_true", help="go on with the run in --output, if there is one")
    training.add_argument("--profile", action="store_true", help="write a TensorBoard profile of a few steps")
    training.add_argument(
        "--save-every", type=_positive, default=None, metavar="STEPS",
        help="save the run's state every so many steps too, not at each epoch's end only",
    )  # fmt: skip


def _preview_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "preview",
        "tf_bridge.preview",
        "draw what the network will see",
        "Draw the first images of a training epoch as a PNG: each as it is stored, with the crop's window on it, "
        "beside what the recipe makes of it, and the label underneath. Without DATA: on the embedded data set.",
    )
    _data_group(parser)
    _engine_arguments(_pipeline_group(parser))
    _sample_group(parser, count=16, output=Path("preview.png"))


def _parity_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "parity",
        "tf_bridge.parity_command",
        "hold every engine against plain tf.data, on your own data",
        "Run one shuffled training epoch over some records through every engine there is (DALI on the CPU, DALI on "
        "the GPU where there is one) and compare each image and label with plain tf.data's, the recipe's ops added "
        "one at a time. Exit code 1 if a difference exceeds its bound. Without DATA: on the embedded data set.",
    )
    _data_group(parser)
    _pipeline_group(parser)
    parser.set_defaults(dtype="float32")  # the ops are compared in uint8 anyway; this adds `Normalize` to the whole
    group = _sample_group(parser, count=256, output=Path("parity.png"))
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _verify_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "verify",
        "tf_bridge.verify_command",
        "find every bad record of a data set",
        "Look at each record once: framing, checksums, schema, image header, and every image decoded whole by every "
        "decoder there is. What is found is kept until a shard changes. Exit code 1 if something is bad. Without DATA: "
        "the embedded data set.",
    )
    _data_group(parser)
    parser.set_defaults(split="all", on_error="skip")
    group = parser.add_argument_group("verifying")
    group.add_argument("--max-pixels", type=_positive, default=178_956_970, help="most an image's header may claim")
    group.add_argument("--threads", type=_positive, default=None, help="CPU threads; default: one for each core")
    group.add_argument("--fresh", action="store_true", help="look again at what was looked at before")
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _inspect_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "inspect",
        "tf_bridge.inspect_command",
        "say what is in a data set, and what to mind in training on it",
        "Read each record's headers once: splits, shards, keys, classes, sizes, formats, orientations, exact "
        "duplicates. Prints tables and advice, and draws a page of plots. Bad records are counted, and stop nothing. "
        "Without DATA: on the embedded data set.",
        frameworks=False,
    )
    _validation_argument(_data_group(parser))
    parser.set_defaults(split="all")
    group = parser.add_argument_group("inspecting")
    group.add_argument("--size", type=_positive, default=224, help="pixels of the crop's side")
    group.add_argument("--threads", type=_positive, default=None, help="CPU threads; default: one for each core")
    group.add_argument("--output", type=_png, default=Path("inspect.png"), help="PNG file to draw")
    group.add_argument("--fresh", action="store_true", help="look again at what was looked at before")
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _doctor_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "doctor",
        "tf_bridge.doctor",
        "check the installation, and say what mends it",
        "Look at Python, TensorFlow, DALI and its plugin, compiler, driver, GPU libraries, folders and cores. Each "
        "library is loaded in a process of its own. Exit code 1 if something is broken.",
        frameworks=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _completion_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "completion",
        "tf_bridge.completion",
        "print the script for your shell's completion",
        'Print the script that completes `dali-tf` in a shell. For bash: eval "$(dali-tf completion bash)".',
        frameworks=False,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="whose script")


def _bench_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "bench",
        "tf_bridge.bench_command",
        "find the fastest engine, dtype and threads here, in about a minute",
        "Run each engine and device there is, in uint8 and float32, against plain tf.data in turn; then the fastest "
        "with other threads and batch sizes; then say in a sentence what to use. Without DATA: the embedded data set.",
    )
    _data_group(parser)
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--recipe", choices=("crop", "imagenet"), default="crop", help="random crop, or random resized crop and flip"
    )
    group.add_argument("--size", type=_positive, default=224, help="pixels of the crop's side")
    group.add_argument("--batch-size", type=_positive, default=64, help="images a step, over all devices")
    group.add_argument("--threads", type=_positive, default=None, help="CPU threads; default: one for each core")
    group.add_argument("--rounds", type=_positive, default=3, help="all settings once, in turn; medians are shown")
    group.add_argument("--seconds", type=float, default=2.0, help="of each setting in each round")
    group.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _data_group(parser: argparse.ArgumentParser) -> Group:
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


def _validation_argument(data: Group) -> None:
    data.add_argument(
        "--validation",
        default=None,
        help="TFDS split (default: validation, or test) or TFRecord glob to validate on; 'none' to skip",
    )


def _pipeline_group(parser: argparse.ArgumentParser) -> Group:
    pipeline = parser.add_argument_group("pipeline")
    pipeline.add_argument(
        "--recipe", choices=("crop", "imagenet"), default="crop", help="random crop, or random resized crop and flip"
    )
    pipeline.add_argument("--size", type=_positive, default=160, help="pixels of the crop's side")
    pipeline.add_argument("--dtype", choices=("uint8", "float16", "float32"), default="uint8", help="of the batches")
    pipeline.add_argument("--threads", type=_positive, default=None, help="CPU threads; default: one for each core")
    return pipeline


def _policy_group(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("bad records")
    group.add_argument(
        "--on-error",
        choices=("raise", "skip", "repair"),
        default="raise",
        help="raise: stop at one; skip: look at all once and leave them out; repair: keep what some decoder reads",
    )
    group.add_argument("--max-bad", type=_fraction, default=0.01, help="most that may be left out, 0 to 1")


def _engine_arguments(pipeline: Group) -> None:
    pipeline.add_argument("--engine", choices=("auto", "dali", "tfdata"), default="auto", help="who does the work")
    pipeline.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto", help="where it is done")


def _sample_group(parser: argparse.ArgumentParser, count: int, output: Path) -> Group:
    sample = parser.add_argument_group("sample")
    sample.add_argument("--count", type=_positive, default=count, help="images, at most")
    sample.add_argument("--seed", type=int, default=0, help="of all that is random")
    sample.add_argument("--epoch", type=_epoch, default=0, help="which epoch of that seed, counted from 0")
    sample.add_argument("--output", type=_png, default=output, help="PNG file to draw")
    return sample


def _positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be a positive int. Received: {text!r}")
    return value


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a fraction, 0 to 1. Received: {text!r}")
    return value


def _epoch(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0 or a positive int. Received: {text!r}")
    return int(text)


def _png(text: str) -> Path:
    if Path(text).suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"must be a file that ends in .png. Received: {text!r}")
    return Path(text)


def _quiet() -> None:
    """Load TensorFlow and DALI's plugin without the lines they print that no user can act on.

    Some come from C++ before any log level counts, so the descriptor itself is turned away meanwhile.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        for module in ("tensorflow", "nvidia.dali.plugin.tf"):
            with suppress(Exception):  # whoever needs it will hear why it cannot be loaded
                import_module(module)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 2 for a usage error, 130 after Ctrl-C."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.WARNING, format="%(message)s")
    if not arguments.verbose:
        warnings.filterwarnings("ignore", module=r"PIL\.")  # of damaged EXIF: nothing that a user can act on
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where a closed pipe is dealt with
        return code
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `dali-tf … | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        if arguments.verbose:
            raise
        hint = " See `dali-tf doctor`." if isinstance(error, ImportError) else ""
        print(f"dali-tf: error: {error}{hint}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
