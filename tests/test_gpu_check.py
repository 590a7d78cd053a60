"""The GPU check where there is no GPU: what can run does, what cannot says why, and what will is a valid graph."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline

import dali_pipe as dp
from benchmarks import dali_alone, gpu_cases, gpu_check, gpu_goals, pipelines
from benchmarks.gpu_cases import Check, Setting
from benchmarks.gpu_check import Report
from dali_pipe.pipeline import native_feed
from tests import support

ON_GPU = [check for check in gpu_cases.checks() if check.device == "gpu" and check.kind in ("parity", "speed")]


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gpu_cases, gpu_check):
        monkeypatch.setattr(module, "dali_gpu_count", lambda: 0)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("shards")
    support.write_shards(folder, [support.photograph(k, 60 + k, 70) for k in range(12)], shards=2)
    return Setting(data=f"{folder}/*", size=32, batch_size=4, seconds=0.05, width=16, steps=3)


QUICK = ("parity", "speed", "torchvision")  # need no TensorFlow, which takes seconds to load in each case's process


@pytest.mark.parametrize("kinds", [QUICK, pytest.param(tuple(gpu_check.RUN), marks=pytest.mark.slow)], ids=len)
def test_all_of_it_on_a_machine_without_a_gpu(
    kinds: tuple[str, ...], setting: Setting, tmp_path: Path, without_a_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "check.json"
    arguments = ["--data", setting.data, "--size", "32", "--batch-size", "4", "--case-seconds", "0.05", "--steps", "2"]
    code = gpu_check.main([*arguments, "--only", *kinds, "--output", str(output)])
    told = capsys.readouterr().out
    assert code == 0, told
    found = json.loads(output.read_text())
    assert found["machine"]["cores"] >= 1 and found["machine"]["commit"]
    assert (found["setting"]["size"], found["setting"]["width"]) == (32, 16)
    by_status: dict[str, list[Any]] = {"ok": [], "skipped": []}
    for case in found["cases"]:
        by_status[case["status"]].append(case)
    with_tensorflow = [] if kinds == QUICK else ["tuned tf.data", "ResNet-18, ours on the CPU"]
    assert [case["name"] for case in by_status["ok"]] == ["cpu uint8", "cpu float16", "cpu float32", *with_tensorflow]
    assert all(case["cpu_ms_per_image"] > 0 and "window" not in case for case in by_status["ok"])
    assert {case["reason"] for case in by_status["skipped"]} == {"needs a GPU that DALI can use"}
    assert len(by_status["skipped"]) == len(ON_GPU) + 1 + len(with_tensorflow)
    assert [goal["verdict"][:11] for goal in found["goals"]] == 4 * ["cannot tell"]
    assert "share: - (≥ 1.0), cannot tell: no parity case ran" in told


@pytest.mark.parametrize("check", [c for c in gpu_cases.checks() if c.needs == ("tensorflow",)], ids=lambda c: c.kind)
def test_what_needs_tensorflow(check: Check, setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, where it is loaded already."""
    assert gpu_check.main(["--case", json.dumps([asdict(check), asdict(setting)])]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["cpu_ms_per_image"] > 0
    if check.kind == "fit":
        assert (found["batch_size"], found["width"]) == (4, 16)
        assert found["step_ms"] > 0 and 0 <= found["input_bound"] < 1 and 0 <= found["input_wait"] <= 1
    else:
        assert found["images_per_second"] > 0 and found["variant"] in pipelines.TUNED_VARIANTS


def test_dali_is_enough(setting: Setting) -> None:
    check = Check(kind="speed", name="cpu", device="cpu")
    done = support.run_python(
        "import sys\nsys.modules['tensorflow'] = None\nfrom benchmarks import gpu_check as g\n"
        f"print(g.speed(g.Check(**{asdict(check)!r}), g.Setting(**{asdict(setting)!r})))"
    )
    assert done.returncode == 0, done.stderr
    assert "images_per_second" in done.stdout


@pytest.mark.parametrize("check", ON_GPU, ids=lambda check: f"{check.kind} {check.name}")
def test_every_gpu_graph_can_be_made(check: Check) -> None:
    """Arguments, types and devices are checked without a GPU; the rest is for one to tell."""
    recipe = gpu_cases.recipes(32)[check.recipe].with_dtype(check.dtype)
    pipe = Pipeline(batch_size=4, num_threads=1, device_id=None)
    with pipe:
        outputs = dali_alone.graph(native_feed(["shard"], ["index"], "image", False), recipe, check, frozenset())
        pipe.set_outputs(*outputs)
    pipe.serialize()
    assert [output.device for output in outputs] == ["gpu", "gpu"]


def test_batches_are_the_plan_s(setting: Setting) -> None:
    """DALI alone, driven from Python, gives the epoch that a data set gives."""
    import tf_bridge as tb

    check = Check(kind="speed", name="cpu", device="cpu")
    epochs = dali_alone.Epochs(check, setting)
    assert len(epochs) == 3
    recipe = gpu_cases.recipes(32)["crop"].with_dtype("uint8")
    expected = tb.from_tfrecords(setting.data, recipe=recipe, batch_size=4, seed=0, engine="dali")
    seen = 0
    for (images, labels), ours in zip(expected, epochs, strict=False):
        np.testing.assert_array_equal(ours[0].as_array(), images)
        np.testing.assert_array_equal(np.ravel(ours[1].as_array()), labels)
        seen += 1
    assert seen == 3


def test_parity_measures_differences(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for the GPU, once as it is and once with other pixels."""
    check = Check(kind="parity", name="crop", device="cpu")
    same = gpu_check.parity(check, setting)
    assert same == {"largest": 0.0, "bound": 0, "mean": 0.0, "labels_equal": True, "images": 12}
    made = gpu_cases.recipes

    def brighter(size: int) -> dict[str, dp.Recipe]:
        shifted = dp.Recipe((dp.RandomCrop(size), dp.RandomBrightness(0.1, 0.1)), "uint8")
        return {**made(size), "brighter": shifted}

    monkeypatch.setattr(dali_alone, "recipes", brighter)
    both = [
        dali_alone.Epochs(Check(kind="speed", name="", device="cpu", recipe=r), setting) for r in ("crop", "brighter")
    ]
    monkeypatch.setattr(dali_alone, "Epochs", lambda *_: both.pop(0))
    other = gpu_check.parity(check, setting)
    assert 20 < other["largest"] <= 26 and 20 < other["mean"] <= 26
    assert other["status"] == "failed" and other["reason"] == f"apart by {other['largest']:.4g}, more than 0"


def test_a_crash_is_an_answer(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check(kind="speed", name="cpu", device="cpu")

    def run(script: str) -> dict[str, Any]:
        shell = tmp_path / "python"
        shell.write_text(f"#!/bin/sh\n{script}\n")
        shell.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(shell))
        return gpu_check.in_process(check, setting, 2)

    assert run("kill -SEGV $$") == {"status": "crashed", "reason": "SIGSEGV"}
    assert run("echo no such op >&2; exit 1") == {"status": "failed", "reason": "no such op"}
    assert run("exec sleep 10") == {"status": "failed", "reason": "still running after 2 s"}
    assert run("echo noise; echo '{\"x\": 1}'") == {"status": "ok", "x": 1}
    assert run('echo \'{"status": "failed", "window": [1, 2]}\'') == {"status": "failed"}


def _case(check: Check, **figures: Any) -> dict[str, Any]:
    return {**asdict(check), "status": "ok", **figures}


def test_goals() -> None:
    cases = [
        _case(gpu_cases.DALI_ALONE, cpu_ms_per_image=0.03, images_per_second=9000.0),
        _case(gpu_cases.DECODER, images_per_second=9500.0),
        _case(gpu_cases.NVJPEG, images_per_second=12_000.0),
        _case(gpu_cases.TUNED, cpu_ms_per_image=0.5),
        _case(gpu_cases.FIT, input_bound=0.01, batch_size=256, width=64),
        _case(Check(kind="parity", name="a")),
        _case(Check(kind="parity", name="b")),
    ]

    def found(*others: dict[str, Any]) -> list[tuple[float | None, str]]:
        """With other outcomes of the cases of the same name."""
        names = {case["name"] for case in others}
        kept = [*(case for case in cases if case["name"] not in names), *others]
        given = gpu_goals.verdicts(kept)
        return [(verdict.found and round(verdict.found, 3), verdict.verdict) for verdict in given]

    assert found() == [(0.06, "reached"), (0.01, "reached"), (0.75, "not reached"), (1.0, "reached")]
    # What the bridge to TensorFlow costs counts where it is known.
    assert found(_case(gpu_cases.OURS, cpu_ms_per_image=0.1))[0] == (0.2, "not reached")
    assert found(_case(gpu_cases.NVJPEG, images_per_second=1.0))[2] == (0.947, "reached")
    assert found(_case(gpu_cases.FIT, input_bound=0.03, batch_size=256, width=64))[1] == (0.03, "not reached")
    other = found(_case(gpu_cases.FIT, input_bound=0.01, batch_size=64, width=64))[1]
    assert other == (None, "cannot tell: it ran with other than batches of 256 and width 64")
    crashed = {**asdict(gpu_cases.TUNED), "status": "crashed", "reason": "SIGSEGV"}
    assert found(crashed)[0] == (None, "cannot tell: tuned tf.data crashed: SIGSEGV")
    outside = {**asdict(Check(kind="parity", name="b")), "status": "failed", "reason": "apart by 3, more than 1"}
    assert found(outside)[3] == (0.5, "not reached")
    skipped = {**outside, "status": "skipped"}
    assert found(skipped)[3] == (None, "cannot tell: 1 of 2 parity cases were skipped")
    nothing = [verdict.verdict for verdict in gpu_goals.verdicts([])]
    assert nothing[1] == "cannot tell: ResNet-18, ours on the GPU was not asked for"


def test_time_runs_out(setting: Setting, tmp_path: Path) -> None:
    report = Report(tmp_path / "check.json", setting)
    gpu_check.run(report, [Check(kind="speed", name="cpu", device="cpu")], seconds=0.0)
    assert report.cases[0]["reason"] == "the 0 s are used up"


@pytest.mark.gpu
@pytest.mark.parametrize("check", [c for c in ON_GPU if c.kind == "parity"], ids=lambda check: check.name)
def test_parity_on_a_gpu(check: Check, setting: Setting) -> None:
    found = gpu_check.in_process(check, setting, 110)
    assert found["status"] == "ok", found
    assert check.decoder != "on the CPU" or found["mean"] < 0.5
