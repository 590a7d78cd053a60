"""`python -m benchmarks`: what is gained, on this machine and on your data.

python -m benchmarks [DATA]            the table: every pipeline, images/s, CPU, memory, start
python -m benchmarks share [DATA]      how much of a training step waits for input
python -m benchmarks scaling [DATA]    curves over threads, batch size, image size, records
python -m benchmarks report FILE …     table, plots and report.html of what the others saved
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import plan, rounds, scaling
from benchmarks.case import DTYPES, RECIPES, Case, find_data
from benchmarks.pipelines import PIPELINES
from dali_pipe.device import available_cores
from tf_bridge import cli_arguments, machine

COMMANDS = ("run", "share", "scaling", "report")
TRIES = 3  # of each of tf.data's variants: one that stalls at the ends of epochs must not be taken for the fastest
RESULTS = Path(__file__).parent / "results"


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = _comparing(commands.add_parser("run", help="the table"), seconds=2.5)
    run.add_argument("--cases", nargs="+", default=[], choices=PIPELINES, metavar="PIPELINE", help="only these")
    share = _comparing(commands.add_parser("share", help="the input-bound share"), seconds=3.0)
    share.add_argument(
        "--cases", nargs="+", default=["question", "tuned", "ours"], choices=PIPELINES, metavar="PIPELINE"
    )
    share.add_argument(
        "--accelerator", type=float, default=2500.0, metavar="IMAGES/S",
        help="what the stand-in trains on: ResNet-50 in mixed precision on one A100 is near the default",
    )  # fmt: skip
    share.add_argument("--fit", action="store_true", help="a real model.fit, too; without a GPU it takes minutes")
    share.add_argument("--width", type=int, default=64, help="channels of the ResNet-18's first stage")
    share.add_argument("--steps", type=int, default=60, help="of model.fit")
    share.add_argument("--logs", default=None, help="folder for TensorBoard profiles of model.fit")
    curves = _measuring(commands.add_parser("scaling", help="the curves"), seconds=2.0)
    curves.add_argument("--recipe", choices=RECIPES, default=RECIPES[0])
    curves.add_argument("--dtype", choices=DTYPES, default=DTYPES[0])
    curves.add_argument("--curves", nargs="+", choices=scaling.CURVES, default=list(scaling.CURVES))
    report = commands.add_parser("report", help="table, plots and HTML of saved results")
    report.add_argument("files", nargs="*", type=Path, default=sorted(RESULTS.glob("*.json")), help="JSON files")
    report.add_argument("--output", type=Path, default=Path("runs/benchmarks"), help="folder for report.html and plots")
    return parser


def _comparing(parser: argparse.ArgumentParser, *, seconds: float) -> argparse.ArgumentParser:
    parser.add_argument("--recipe", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    return _measuring(parser, seconds=seconds)


def _measuring(parser: argparse.ArgumentParser, *, seconds: float) -> argparse.ArgumentParser:
    parser.add_argument("data", nargs="?", help="TFDS name, TFDS folder, or TFRecord glob; default: embedded")
    parser.add_argument("--split", default="train", help="TFDS split, whole")
    parser.add_argument("--data-dir", default=None, help="where TFDS keeps its data sets")
    parser.add_argument("--image-key", default="image", help="in TFRecord files (ImageNet: image/encoded)")
    parser.add_argument("--label-key", default="label", help="in TFRecord files (ImageNet: image/class/label)")
    parser.add_argument("--label-offset", type=int, default=0, help="what TFRecord files call the first class")
    parser.add_argument("--dct", choices=("accurate", "fast"), default="accurate", help="our JPEG decoder's")
    parser.add_argument("--size", type=int, default=224, help="pixels of the crop's side")
    parser.add_argument("--batch-size", type=int, default=64, help="images")
    parser.add_argument("--threads", type=int, default=available_cores(), help="CPU threads of each pipeline")
    parser.add_argument("--rounds", type=int, default=5, help="all cases once, in turn")
    parser.add_argument("--seconds", type=cli_arguments.seconds, default=seconds, help="of each case in each round")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before them that do not count")
    parser.add_argument("--limit", type=float, help="seconds after which a case is given up; default: by measure")
    parser.add_argument("--output", type=Path, default=None, help="JSON file; default: runs/benchmarks/COMMAND.json")
    return parser


def _base(arguments: argparse.Namespace) -> Case:
    names = ("split", "dct", "size", "batch_size", "threads", "image_key", "label_key", "label_offset")
    same = {name: getattr(arguments, name) for name in names}
    return Case(pipeline="ours", data=find_data(arguments.data, arguments.data_dir), **same)


def _cases(arguments: argparse.Namespace) -> list[Case]:
    return plan.table(_base(arguments), arguments.recipe, arguments.dtype, arguments.cases)


def _task(arguments: argparse.Namespace, measure: str, **more: Any) -> dict[str, Any]:
    same = {name: getattr(arguments, name) for name in ("warm_up", "seconds", "limit")}
    return {"measure": measure, **same, **more}


def _run(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    _interleave(_settled(arguments, found), arguments, found, "speed")


def _share(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    if arguments.logs and not arguments.fit:
        raise ValueError("`--logs` takes the profiles of `--fit`. Give both.")
    cases = _settled(arguments, found)
    _interleave(cases, arguments, found, "simulated", accelerator=arguments.accelerator)
    if arguments.fit:
        more = {name: getattr(arguments, name) for name in ("steps", "width", "logs")}
        _interleave(cases, arguments, found, "fit", **more)


def _scaling(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    base = replace(_base(arguments), recipe=arguments.recipe, dtype=arguments.dtype)
    found["curves"] = list[Any]()
    scaling.run(base, arguments.curves, arguments.rounds, _task(arguments, "speed"), found["curves"])


def _settled(arguments: argparse.Namespace, found: dict[str, Any]) -> list[Case]:
    """The cases, tf.data's in its fastest variant."""

    def quick(case: Case) -> float:
        row = rounds.new_row(case)
        rounds.interleave([row], TRIES, _task(arguments, "speed"))
        speed = rounds.spread(row, "images_per_second")
        return speed.median if speed else 0.0

    found["rows"] = list[rounds.Row]()
    cases, found["variants"] = plan.settle(_cases(arguments), quick)
    return cases


def _interleave(
    cases: Sequence[Case], arguments: argparse.Namespace, found: dict[str, Any], measure: str, **more: Any
) -> None:
    rows = [rounds.new_row(case) for case in cases]
    found["rows"] += rows
    rounds.interleave(rows, arguments.rounds, _task(arguments, measure, **more))


def _report(arguments: argparse.Namespace) -> int:
    from benchmarks import report

    if not arguments.files:
        print("There is nothing to report: run `python -m benchmarks` first.", file=sys.stderr)
        return 2
    results = [json.loads(path.read_text()) for path in arguments.files]
    print(report.text(results))
    print(f"\nSaved: {report.write(results, arguments.output)}")
    return 0


def _portable(value: Any) -> Any:
    """The same without the folders of this machine: what is saved may be published."""
    if isinstance(value, Mapping):
        return {key: _portable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(part) for part in value]
    if isinstance(value, str | Path) and Path(value).is_absolute():
        return "/".join(Path(value).parts[-2:])
    return value


def _save(results: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_portable(results), indent=1, default=str) + "\n")


def _measure(arguments: argparse.Namespace) -> int:
    """Run a command that measures. What it found is saved and told, and after Ctrl-C what it found until then."""
    settings = {name: value for name, value in vars(arguments).items() if name != "output"}
    results = {"command": arguments.command, "machine": machine.describe(rounds.ROOT), "settings": settings}
    code = 0
    try:
        {"run": _run, "share": _share, "scaling": _scaling}[arguments.command](arguments, results)
    except KeyboardInterrupt:
        print("\nInterrupted: what follows is what was measured until then.", file=sys.stderr)
        code = 130
    if not results.get("rows", results.get("curves")):
        return code
    output = arguments.output or Path("runs/benchmarks") / f"{arguments.command}.json"
    _save(results, output)
    from benchmarks import report

    print(f"\n{report.text([results])}\n\nSaved: {output}")
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `run` where none is named; the exit code is 2 for what cannot be measured, 130 after Ctrl-C."""
    argv = list(sys.argv[1:] if argv is None else argv)
    named = bool(argv) and (argv[0] in COMMANDS or argv[0] in ("-h", "--help"))
    arguments = _parser().parse_args(argv if named else ["run", *argv])
    try:
        return _report(arguments) if arguments.command == "report" else _measure(arguments)
    except (ValueError, OSError) as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
