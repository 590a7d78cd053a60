"""`dali-tf bench`: which settings are tried, what it advises, and what it prints."""

import json
from pathlib import Path

import numpy as np
import pytest

import dali_pipe as dp
from tests import support
from tf_bridge import bench_command, cli
from tf_bridge.bench_command import Candidate, Setting
from tf_bridge.measure import Speed


def _candidate(speed: float, engine: str | None = "tfdata", **changed: object) -> Candidate:
    setting = Setting(engine, "cpu", "uint8", 4, 64)._replace(**changed)  # type: ignore[arg-type]
    rounds = [Speed(speed * drift, 0.5, 0.1, 640, 1.0, 1, 700.0) for drift in (0.9, 1.0, 1.1)]
    return Candidate(setting, None, rounds)


def test_the_fewest_threads_that_are_as_fast() -> None:
    best = _candidate(1000)
    assert bench_command.advise([best, _candidate(985, threads=2), _candidate(1010, threads=8)]).setting.threads == 2
    assert bench_command.advise([best, _candidate(900, threads=2), _candidate(1010, threads=8)]).setting.threads == 4
    assert bench_command.advise([best, _candidate(900, threads=2), _candidate(1200, threads=8)]).setting.threads == 8
    assert bench_command.advise([best, _candidate(2000, batch_size=256)]) is best


def test_the_sentence() -> None:
    plain = [_candidate(400, None, dtype="float32"), _candidate(600, None)]
    best, larger = _candidate(1000), _candidate(1300, batch_size=256)
    told = bench_command.text([best, *plain], [larger], best)
    assert 'Use engine="tfdata", device="cpu", dtype="uint8", num_threads=4, batch_size=64: 1,000 images/s' in told
    assert "1.7× plain tf.data in uint8 (2.5× in float32); batches of 256, if the training allows them" in told
    assert "256, if the training allows them, give 30% more" in told and "noise" not in told
    assert "Preprocess(recipe) normalises in the model." in told
    assert "batches of" not in bench_command.text([best, *plain], [_candidate(1050, batch_size=256)], best)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([980], "; within the noise of these rounds dali on cpu in uint8 is as fast; Preprocess"),
        ([980, 890], " dali on cpu in uint8 and dali on gpu in uint8 are as fast;"),
        ([700], None),  # 770 in its best round, and the best has 900 in its worst
    ],
)
def test_a_choice_within_the_noise_is_called_so(others: list[float], words: str | None) -> None:
    best, plain = _candidate(1000), _candidate(990, None)
    found = [best, plain, *(_candidate(s, "dali", device=d) for s, d in zip(others, ("cpu", "gpu"), strict=False))]
    told = bench_command.text(found, [], _candidate(1010, threads=8))
    assert words in told if words else "noise" not in told


@pytest.mark.parametrize("make", [dp.crop_train, dp.imagenet_train])
def test_the_baseline_gives_what_a_recipe_says(make: type, photographs: list[Path]) -> None:
    """Small images too, which would stop tf.image.random_crop."""
    records = dp.from_files(photographs)
    for dtype in ("uint8", "float32"):
        recipe = make(64, dtype)
        images, labels = next(iter(bench_command.plain(records, recipe, 16)))
        assert images.shape == (16, 64, 64, 3) and images.dtype == dtype
        assert set(np.asarray(labels).tolist()) <= set(range(50))


def test_bench_as_json(
    photographs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_command, "WARM_UP", 0.0)
    monkeypatch.setattr("sys.stderr", terminal := support.Terminal())
    files = str(photographs[0].parent / "*")
    quick = ["--size", "32", "--batch-size", "8", "--rounds", "1", "--seconds", "0.02", "--threads", "1"]
    assert cli.main(["bench", files, *quick, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "Measuring" in terminal.getvalue() and terminal.getvalue().endswith("\r")  # and is gone at the end
    tried = {(row["engine"], row["dtype"]) for row in found["rows"]}
    assert tried == {(engine, dtype) for engine in ("dali", "tfdata", None) for dtype in ("uint8", "float32")}
    assert all(row["rounds"][0]["images_per_second"] > 0 for row in found["rows"])
    assert {row["batch_size"] for row in found["rows"]} == {8, 16, 32}
    assert found["use"]["batch_size"] == 8 and found["advice"].startswith("Use engine=")
    assert found["machine"]["cpu"]
