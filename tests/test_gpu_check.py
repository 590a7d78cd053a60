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
from benchmarks import dali_alone, gpu_cases, gpu_check
from benchmarks.gpu_cases import Check, Setting
from benchmarks.gpu_check import Report
from dali_pipe.pipeline import native_feed
from tests import support

ON_GPU = [check for check in gpu_cases.checks() if check.device == "gpu" and check.kind in ("parity", "speed")]


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cases, "dali_gpu_count", lambda: 0)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("shards")
    support.write_shards(folder, [support.photograph(k, 60 + k, 70) for k in range(12)], shards=2)
    return Setting(data=f"{folder}/*", size=32, batch_size=4, seconds=0.05, width=16, steps=3)


def test_all_of_it_on_a_machine_without_a_gpu(
    setting: Setting, tmp_path: Path, without_a_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "check.json"
    arguments = ["--data", setting.data, "--size", "32", "--batch-size", "4", "--case-seconds", "0.05"]
    code = gpu_check.main([*arguments, "--only", "parity", "speed", "torchvision", "--output", str(output)])
    told = capsys.readouterr().out
    assert code == 0, told
    found = json.loads(output.read_text())
    assert found["machine"]["cores"] >= 1 and found["setting"]["size"] == 32
    by_status: dict[str, list[Any]] = {"ok": [], "skipped": []}
    for case in found["cases"]:
        by_status[case["status"]].append(case)
    assert [case["name"] for case in by_status["ok"]] == ["cpu uint8", "cpu float16", "cpu float32"]
    assert all(case["images_per_second"] > 0 and case["cpu_ms_per_image"] > 0 for case in by_status["ok"])
    assert {case["reason"] for case in by_status["skipped"]} == {"needs a GPU that DALI can use"}
    assert len(by_status["skipped"]) == len(ON_GPU) + 1


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
    assert same == {"largest": 0.0, "mean": 0.0, "labels_equal": True, "images": 12}
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


def test_time_runs_out(setting: Setting, tmp_path: Path) -> None:
    report = Report(tmp_path / "check.json", setting)
    gpu_check.run(report, [Check(kind="speed", name="cpu", device="cpu")], seconds=0.0)
    assert report.cases[0]["reason"] == "the 0 s are used up"


@pytest.mark.slow
def test_fit(setting: Setting, without_a_gpu: None) -> None:
    found = gpu_check.in_process(Check(kind="fit", name="", device="cpu"), setting, 110)
    assert found["status"] == "ok", found
    assert found["step_ms"] > 0 and 0 <= found["input_bound"] < 1 and 0 <= found["input_wait"] <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("check", [c for c in ON_GPU if c.kind == "parity"], ids=lambda check: check.name)
def test_parity_on_a_gpu(check: Check, setting: Setting) -> None:
    found = gpu_check.in_process(check, setting, 110)
    assert found["status"] == "ok", found
    assert found["labels_equal"] and (check.decoder != "on the CPU" or found["mean"] < 0.5)
