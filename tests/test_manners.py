"""How every command behaves: quick to start, quiet in pipes, clean after Ctrl-C, the same flags for the same things."""

import argparse
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import support
from tf_bridge import cli
from tf_bridge.cli_parser import commands, in_flags

COMMANDS = commands(cli.parser())
DALI_TF = [sys.executable, "-m", "tf_bridge.cli"]


def actions() -> list[tuple[str, argparse.Action]]:
    return [(name, action) for name, parser in COMMANDS.items() for action in parser._actions]


def test_the_same_thing_has_the_same_flag_and_words_everywhere() -> None:
    known: dict[str, tuple[str, argparse.Action]] = {}
    for command, action in actions():
        first, other = known.setdefault(action.dest, (command, action))
        where = f"--{action.dest} of {first} and {command}"
        assert action.option_strings == other.option_strings, where
        if action.dest != "output":  # a folder of a run here, a picture there
            assert action.help == other.help, where
            assert (action.type, action.choices) == (other.type, other.choices), where


def test_flags_are_whole_words_with_help() -> None:
    for command, action in actions():
        assert action.help, f"{command} {action.dest}"
        if long := [flag for flag in action.option_strings if flag.startswith("--")]:
            assert long == [f"--{action.dest.replace('_', '-')}"] and "_" not in long[0]


@pytest.mark.parametrize("command", ["parity", "verify", "bench", "inspect", "doctor"])
def test_a_command_that_prints_a_table_has_json(command: str) -> None:
    assert COMMANDS[command].parse_args(["--json"]).json


def test_help_comes_at_once() -> None:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        done = subprocess.run([*DALI_TF, "--help"], capture_output=True, text=True)
        took.append(time.perf_counter() - began)
        assert done.returncode == 0 and all(command in done.stdout for command in COMMANDS)
    assert min(took) < 0.5


def test_help_shows_defaults_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    told = capsys.readouterr().out
    assert "(default: 64)" in told and "None" not in told and "False" not in told


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("dali-tf 0.1.0 (Python 3.")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dali-tf ins", ["inspect"]),
        ("dali-tf train --engine ", ["auto", "dali", "tfdata"]),
        ("dali-tf verify --max-p", ["--max-pixels"]),
        ("dali-tf preview --recipe ", ["crop", "imagenet"]),
    ],
)
def test_bash_completes(line: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    words = line.split(" ")
    ask = (
        f"source {script}; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; "
        "COMP_LINE='x'; COMP_POINT=1; COMP_TYPE=9; $(complete -p dali-tf | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True)
    assert done.stdout.split() == expected, done.stderr


def test_zsh_and_tcsh_have_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    for shell, word in (("zsh", "#compdef dali-tf"), ("tcsh", "complete dali-tf")):
        assert cli.main(["completion", shell]) == 0
        assert word in capsys.readouterr().out


@pytest.mark.parametrize("command", ["preview", "parity", "inspect"])
def test_pictures_go_where_runs_go(command: str) -> None:
    """Into a folder that git ignores."""
    assert COMMANDS[command].parse_args([]).output == Path("runs") / f"{command}.png"
    assert "runs/" in (Path(__file__).parent.parent / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("command", ["train", "preview", "parity", "verify", "bench", "inspect"])
@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("train-*", "no file matches this glob"),
        ("", "this folder holds data sets: give one of them, such as "),
        ("shards", "this folder holds TFRecord files: give them as a glob, such as "),
    ],
)
def test_data_that_are_elsewhere(
    command: str, data: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cats" / "1.0.0").mkdir(parents=True)
    (tmp_path / "cats" / "1.0.0" / "dataset_info.json").touch()
    support.write_shard(tmp_path / "shards" / "a", [support.example({"label": 1})])
    assert cli.main([command, str(tmp_path / data)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"; {hint}" in line


def test_errors_of_python_functions_name_the_command_s_flags() -> None:
    told = (
        'Set `image_key`. `device="gpu"`, on_error="skip" of /data/seed=3/x, Received: max_bad=0.5, `data`, records=3'
    )
    assert in_flags(told, COMMANDS["train"]) == (
        "Set `--image-key`. `--device=gpu`, --on-error=skip of /data/seed=3/x, Received: --max-bad=0.5, `data`, "
        "records=3"
    )
    assert in_flags("`batch_size` is `--size`", COMMANDS["verify"]) == "`batch_size` is `--size`"


def test_a_closed_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*DALI_TF, "completion", "bash"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_closed_standard_error_is_no_error(photographs: list[Path], tmp_path: Path) -> None:
    command = shlex.join([*DALI_TF, "inspect", str(photographs[0]), "--output", str(tmp_path / "page.png")])
    done = subprocess.run(f"{command} 2>&-", shell=True, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "Saved:" in done.stdout


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_time_is_above_zero(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", f"--seconds={seconds}"])
    assert f"`--seconds` must be a number above 0. Received: '{seconds}'" in capsys.readouterr().err


def test_without_tensorflow_a_command_points_to_the_doctor() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; from tf_bridge import cli; sys.exit(cli.main(['train']))"
    done = support.run_python(code)
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]
    assert error.startswith("dali-tf: error: tf_bridge needs TensorFlow") and "`dali-tf doctor`" in error


def test_progress_is_for_terminals_and_json_is_alone(tmp_path: Path, photographs: list[Path]) -> None:
    command = [*DALI_TF, "inspect", str(photographs[0]), "--json", "--fresh", "--output", str(tmp_path / "page.png")]
    quiet = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(quiet.stdout)["records"] == 17 and quiet.stderr == ""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))  # on none, nothing is drawn
    os.set_blocking(ours, False)
    loud = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True)
    shown = os.read(ours, 10_000).decode()
    os.close(theirs)
    os.close(ours)
    assert loud.stdout == quiet.stdout
    assert "Looking" in shown and shown.rstrip(" ").endswith("\r")  # and is gone at the end


class Running:
    """A command in a session of its own, so that whatever it starts can be found."""

    def __init__(self, *arguments: str | Path, **environment: str):
        command = [*DALI_TF, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip

    def members(self) -> Mapping[int, str]:
        """Living processes of the session and their names."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, rest = stat.read_text().rsplit(")", 1)
            except OSError:
                continue
            state, _, _, session = rest.split()[:4]
            if int(session) == self.process.pid and state != "Z":
                found[int(stat.parent.name)] = name
        return found

    def interrupted(self) -> tuple[int, str]:
        """Exit code and standard error after Ctrl-C, which a terminal sends to one process here."""
        self.process.send_signal(signal.SIGINT)
        try:
            _, told = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        deadline = time.monotonic() + 5
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.process.returncode, told


def test_ctrl_c_takes_the_probes_along(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import time; time.sleep(100)")
    running = Running("doctor", PYTHONPATH=str(tmp_path))
    deadline = time.monotonic() + 30
    while len(running.members()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert running.interrupted() == (130, "\nInterrupted.\n")
    assert running.members() == {}


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.7, 3.0, 7.0])
@pytest.mark.parametrize("command", ["train", "preview", "parity", "verify", "bench", "inspect", "doctor"])
def test_ctrl_c_leaves_a_clean_line_and_nobody(command: str, delay: float, tfds_folder: Path, tmp_path: Path) -> None:
    data = [] if command == "doctor" else [str(tfds_folder)]
    output = ["--output", str(tmp_path / "out.png")] if command not in ("doctor", "verify", "bench") else []
    running = Running(command, *data, *output)
    time.sleep(delay)
    code, told = running.interrupted()
    assert running.members() == {}
    assert "Traceback" not in told, told
    if code == 130:  # else it was done before
        assert told.strip() == "Interrupted." or command == "train"
    else:
        assert code in (0, 1)
