"""README's Python runs as printed, on small data in the places it names; command lines are such as there are."""

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks.__main__ as benchmarks
import dali_pipe as dp
import tf_bridge as tb
from tests import support
from tf_bridge import cli
from tf_bridge.cli_parser import commands

ROOT = Path(__file__).parent.parent
TEXTS = {
    name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")
}
README = TEXTS["README.md"]
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet(
    snippet: str, imagenette: Path, photographs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    for k in range(2):
        payloads = [
            support.example({"image/encoded": support.photograph(k, 60, 50), "image/class/label": 1 + n})
            for n in range(10)
        ]
        support.write_shard(tmp_path / "imagenet" / f"train-{k:05d}-of-00002", payloads)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(imagenette))
    model = tb.resnet18(10, recipe=dp.crop_train(224), width=16)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    small = re.sub(r"batch_size=\d+", "batch_size=4", re.sub(r"epochs=\d+", "epochs=1", snippet))
    exec(compile(small, "README.md", "exec"), {"model": model})


def test_the_two_commands_are_there() -> None:
    commands = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    assert {"uv run dali-tf train", "uv run pytest"} <= set(commands)
    assert "uv run pytest" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def command_lines(text: str) -> Iterator[str]:
    """Whatever calls one of our programs, in a block of code or between backticks."""
    joined = re.sub(r"\\\n\s*", "", text)
    yield from re.findall(r"(?:^|(?<=[\s`(]))(?:dali-tf|python -m benchmarks)(?![-\w])[^`|)#\n]*", joined, re.MULTILINE)


COMMAND_LINES = sorted({line.strip() for text in TEXTS.values() for line in command_lines(text)})


def test_command_lines_are_found() -> None:
    """In a block, in a sentence, in a table, after `$(`, over several lines."""
    told = {"dali-tf train", "dali-tf bench DATA", "dali-tf doctor", "dali-tf completion bash", "python -m benchmarks"}
    assert told <= set(COMMAND_LINES)
    assert any("--strategy multiworker" in line and line.endswith("--resume") for line in COMMAND_LINES)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_command_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)
    try:
        if words[0] == "dali-tf":
            cli.parser().parse_args(words[1:])
        else:
            words = words[3:]
            named = bool(words) and words[0] in benchmarks.COMMANDS
            benchmarks._parser().parse_args(words if named else ["run", *words])
    except SystemExit as end:
        assert end.code == 0 and "--help" in words, capsys.readouterr().err


def test_flags_of_their_own_are_some_command_s() -> None:
    """Those that a sentence names without their command."""
    (measuring,) = (a for a in benchmarks._parser()._actions if isinstance(a, argparse._SubParsersAction))
    parsers = [*commands(cli.parser()).values(), *measuring.choices.values()]
    known = {flag for parser in parsers for flag in parser._option_string_actions}
    named = {flag for text in TEXTS.values() for flag in re.findall(r"`(--[\w-]+)[^`]*`", text)}
    assert {"--help", "--json", "--fit"} <= named
    assert named <= known | {"--all"}  # which is `.ci/run`'s
