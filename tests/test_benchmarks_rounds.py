"""A case's own process: its time limit, how it may end, and what is seen of the GPU meanwhile."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import child, gpu, plots, report, rounds
from benchmarks.case import Case

Start = Callable[..., rounds.Found]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """`in_process` with a shell script in the interpreter's place."""

    def run(script: str, **task: Any) -> rounds.Found:
        _executable(tmp_path / "python", script)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        return rounds.in_process({"measure": "fit", **task})

    return run


def _executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)


def test_a_case_ends_at_its_limit_with_all_it_started(start: Start, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    found = start(f"sleep 60 & echo $! > {pid}; wait", limit=0.5)
    assert found == {"failed": "still running after 0.5 s, the limit of `fit`; `--limit` sets another"}
    stat = Path(f"/proc/{pid.read_text().strip()}/stat")
    assert not stat.exists() or ") Z " in stat.read_text()


def test_how_a_case_may_end(start: Start) -> None:
    assert start("kill -SEGV $$") == {"failed": "ended by SIGSEGV"}
    assert start("echo 'Check failed: x' >&2; kill -ABRT $$") == {"failed": "ended by SIGABRT, after: Check failed: x"}
    assert start("echo no such op >&2; exit 1") == {"failed": "no such op"}
    assert start("exit 3") == {"failed": "exit code 3, and nothing printed"}
    assert start("exit 0") == {"failed": "exit code 0, and nothing printed"}
    assert start("echo noise; echo '{\"x\": 1}'") == {"x": 1}


def test_each_measure_has_a_limit() -> None:
    assert rounds.LIMITS.keys() == child.MEASURES.keys()
    assert rounds.time_limit({"measure": "speed", "warm_up": 1.0, "seconds": 400.0}) == 300 + 1 + 2 * 400
    assert rounds.time_limit({"measure": "view", "limit": None}) == 300
    assert rounds.time_limit({"measure": "fit", "seconds": 3.0, "limit": 5}) == 5


@pytest.mark.parametrize(("given", "limits"), [([], (307, 7207)), (["--limit", "9"], (9, 9))])
def test_the_command_gives_fit_its_time(
    given: list[str], limits: tuple[int, int], photographs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def run(task: Mapping[str, Any]) -> rounds.Found:
        seen[task["measure"]] = rounds.time_limit(task)
        return {"simulated": True, "device": "cpu", "step_ms": 2.0, "cached_step_ms": 1.0, "input_bound": 0.5}

    monkeypatch.setattr(rounds.interleave, "__defaults__", (run, lambda _: None))
    quick = ["--recipe", "crop_train", "--dtype", "uint8", "--cases", "ours", "--seconds", "3", "--warm-up", "1"]
    data = str(photographs[0].parent / "*")
    assert command.main(["share", data, "--fit", *quick, *given, "--output", str(tmp_path / "share.json")]) == 0
    assert (seen["simulated"], seen["fit"]) == limits


def test_what_is_told_names_the_place_on_a_curve() -> None:
    told = list[str]()
    row = rounds.new_row(Case(pipeline="ours", data="d", option="dali/cpu"), x=64)
    rounds.interleave([row], 1, {}, lambda _: {"images_per_second": 12.0, "epochs": 3}, told.append)
    assert told == ["round 1 of 1: crop_train uint8 ours dali/cpu at 64: images_per_second 12"]


def test_the_gpu_is_seen_within_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _executable(tmp_path / "nvidia-smi", 'exec cat "${0%/*}/told"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    os.mkfifo(tmp_path / "told")
    with gpu.Watch() as watch, open(tmp_path / "told", "w", buffering=1) as told:

        def tell(text: str, samples: int) -> float:
            """The time when all of them have been read."""
            told.write(text)
            end = time.monotonic() + 10
            while len(watch.samples) < samples and time.monotonic() < end:
                time.sleep(0.001)
            assert len(watch.samples) == samples
            return time.time()

        opened = tell("100, 9000\n", 1)
        closed = tell("10, 1000\n[N/A], [N/A]\n30, 3000\n", 3)
        time.sleep(0.01)
        end = tell("100, 9000\n", 4)
    assert watch.within(opened, closed) == {"gpu_percent": 20.0, "gpu_memory_mb": 3000.0}
    assert watch.within(end + 1, end + 2) == {}
    assert watch._process is not None and watch._process.returncode is not None


def test_nothing_is_seen_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with gpu.Watch() as watch:
        pass
    assert watch.within(0, time.time()) == {}


def test_a_case_has_what_was_seen_of_the_gpu(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.Watch, "within", lambda _, opened, closed: {"gpu_percent": opened + closed})
    assert start("echo '{\"window\": [1, 2]}'") == {"window": [1, 2], "gpu_percent": 3}


def test_a_stand_in_is_called_one(photographs: list[Path]) -> None:
    case = Case(pipeline="limit_copy", data=str(photographs[0].parent / "*"), size=32, batch_size=4)
    row = rounds.new_row(case)
    task = {"measure": "simulated", "accelerator": 4000.0, "warm_up": 0.0, "seconds": 0.01}
    rounds.interleave([row], 1, task, lambda task: child.run(dict(task)), lambda _: None)
    assert row["rounds"][0]["simulated"] is True
    assert row["rounds"][0]["step_ms"] >= 1
    told = report._share_line(row, {"accelerator": 4000.0})
    assert told[3] == "simulated, 4,000 images/s"
    assert plots._simulated(row) == " (simulated)"
    row["rounds"][0].update(simulated=False, device="cpu")
    assert report._share_line(row, {"accelerator": 4000.0, "width": 64})[3] == "ResNet-18/64 fit, cpu"
    assert plots._simulated(row) == ""
