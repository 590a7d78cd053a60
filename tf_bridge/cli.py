"""The `dali-tf` command. Nothing here imports TensorFlow before a command needs it."""

import argparse
import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from tf_bridge import cli_arguments as args
from tf_bridge.cli_parser import HelpFormatter, Parser, Version, in_flags

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

PICTURES = Path("runs")  # where they go unless told otherwise: beside the runs of `train`


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
        if not frameworks:
            return int(import_module(module).run(arguments))
        import_module("tf_bridge").check_installed()
        if not arguments.verbose:
            import_module("tf_bridge.quiet").load_frameworks()
        with import_module("tf_bridge.cli_data").plain_errors():
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
    args.validation_argument(args.data_group(parser))
    args.engine_arguments(args.pipeline_group(parser))
    args.policy_group(parser)

    training = parser.add_argument_group("training")
    args.batch_size_argument(training)
    training.add_argument(
        "--strategy",
        choices=("one", "mirrored", "multiworker"),
        default="one",
        help="one device; all GPUs of this machine; or one worker of several, as TF_CONFIG or SLURM say",
    )
    training.add_argument("--epochs", type=args.positive, default=5, help="passes over the data")
    training.add_argument(
        "--width",
        type=args.positive,
        default=16,
        help="channels of the first stage, a multiple of 16; the paper's is 64",
    )
    training.add_argument(
        "--learning-rate", type=float, default=1e-3, help="Adam's, to begin with; × 0.3 after 3 epochs without progress"
    )
    training.add_argument(
        "--patience", type=args.natural, default=8, metavar="EPOCHS",
        help="stop after so many epochs without progress of the validation accuracy; 0: never",
    )  # fmt: skip
    args.seed_argument(training)
    training.add_argument("--mixed-precision", action="store_true", help="compute in float16 (GPU) or bfloat16 (CPU)")
    training.add_argument("--output", type=Path, default=Path("runs/latest"), help="folder for checkpoints and logs")
    training.add_argument("--resume", action="store_true", help="go on with the run in --output, if there is one")
    training.add_argument("--profile", action="store_true", help="write a TensorBoard profile of a few steps")
    training.add_argument(
        "--save-every", type=args.positive, default=None, metavar="STEPS",
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
    args.data_group(parser)
    args.engine_arguments(args.pipeline_group(parser))
    args.policy_group(parser)
    args.sample_group(parser, count=16, output=PICTURES / "preview.png")


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
    args.data_group(parser)
    args.pipeline_group(parser)
    args.policy_group(parser)
    parser.set_defaults(dtype="float32")  # the ops are compared in uint8 anyway; this adds `Normalize` to the whole
    group = args.sample_group(parser, count=256, output=PICTURES / "parity.png")
    args.json_argument(group)


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
    args.data_group(parser)
    parser.set_defaults(split="all", on_error="skip")
    group = parser.add_argument_group("verifying")
    group.add_argument("--max-pixels", type=args.positive, default=178_956_970, help="most an image's header may claim")
    args.threads_argument(group)
    args.fresh_argument(group)
    args.json_argument(group)


def _inspect_parser(commands: Commands) -> None:
    parser = _command(
        commands,
        "inspect",
        "tf_bridge.inspect_command",
        "say what is in a data set, and what to mind in training on it",
        "Read each record's headers once: splits, shards, keys, classes, sizes, formats, orientations, exact "
        "duplicates. Prints tables and advice, and draws a page of plots. Bad records are counted, and stop nothing. "
        "Threads read; going through the headers takes one core. "
        "Without DATA: on the embedded data set.",
        frameworks=False,
    )
    args.validation_argument(args.data_group(parser))
    parser.set_defaults(split="all")
    group = parser.add_argument_group("inspecting")
    args.size_argument(group, 224)
    args.threads_argument(group)
    args.picture_argument(group, PICTURES / "inspect.png")
    args.fresh_argument(group)
    args.json_argument(group)


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
    args.json_argument(parser)


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
        "find the fastest engine, dtype and threads here, in about two minutes",
        "Run each engine and device there is, in uint8 and float32, against plain tf.data in turn; then the fastest "
        "with other threads and batch sizes; then say in a sentence what to use. Without DATA: the embedded data set.",
    )
    args.data_group(parser)
    group = parser.add_argument_group("measuring")
    args.recipe_argument(group)
    args.size_argument(group, 224)
    args.batch_size_argument(group)
    args.threads_argument(group)
    group.add_argument("--rounds", type=args.positive, default=3, help="all settings once, in turn; medians are shown")
    group.add_argument("--seconds", type=args.seconds, default=2.0, help="of each setting in each round")
    args.json_argument(group)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 2 for a usage error, 130 after Ctrl-C."""
    if sys.stderr is None:  # closed, as by `2>&-`: what is told goes nowhere
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        os.dup2(sys.stderr.fileno(), 2)
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
        told = in_flags(str(error), parser().command(arguments.command))
        print(f"dali-tf: error: {told}{hint}", file=sys.stderr)
        return 2


def program() -> int:
    """The command line's process: `main`, after which Ctrl-C has nothing left to interrupt."""
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the frameworks take a second to end
    return code


if __name__ == "__main__":
    sys.exit(program())
