"""Each curve from the cases to the table and the plot, small and in this process."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
from benchmarks import child, photos, plots, report, rounds, scaling, views
from benchmarks.case import Case
from dali_pipe import tfrecord

MACHINE = {"date": "2026-01-02", "cpu": "C", "cores": 2, "gpus": [], "packages": {}, "load_before": 0, "commit": "x"}
SETTINGS = {"rounds": 2, "seconds": 0.01, "batch_size": 4, "size": 32, "dct": "accurate"}


@pytest.fixture
def base(photographs: list[Path]) -> Case:
    return Case(pipeline="ours", data=str(photographs[0].parent / "*"), size=32, batch_size=4, threads=1)


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path))
    monkeypatch.setattr(scaling, "BATCHES", (2, 8))
    monkeypatch.setattr(scaling, "VIEWS", ((200, 2), (400, 3)))
    monkeypatch.setattr(scaling, "engines", lambda: ("dali/cpu",))
    monkeypatch.setattr(photos, "COUNT", 10)
    monkeypatch.setattr(photos, "SHORTER_SIDES", (140, 160))

    def here(task: Mapping[str, Any]) -> rounds.Found:
        found: rounds.Found = json.loads(json.dumps(child.run(json.loads(json.dumps({**task, "began": 0.0})))))
        return found

    monkeypatch.setattr(rounds.interleave, "__defaults__", (here, lambda _: None))


@pytest.mark.parametrize(
    ("curve", "places", "case"),
    [
        ("threads", [1, 2], lambda x, case: case["threads"] == x),
        ("batch", [2, 8], lambda x, case: case["batch_size"] == x),
        ("image", [140, 160], lambda x, case: f"photos-{x}" in case["data"] and case["size"] == scaling.IMAGE_CROP),
        ("shuffle", ["off", "on"], lambda x, case: case["shuffle"] == (x == "on")),
    ],
)
def test_a_curve_of_speeds(curve: str, places: list[Any], case: Any, base: Case) -> None:
    found: list[dict[str, Any]] = []
    scaling.run(base, [curve], 1, {"measure": "speed", "warm_up": 0.0, "seconds": 0.05}, found)
    rows = found[0]["rows"]
    names = ["tuned fixed+pool", "ours dali/cpu"]
    assert [(row["x"], row["name"]) for row in rows] == [(x, name) for x in places for name in names]
    for row in rows:
        assert case(row["x"], row["case"])
        assert [measured["images_per_second"] > 0 for measured in row["rounds"]] == [True], row
    results = {"command": "scaling", "machine": MACHINE, "settings": SETTINGS, "curves": found}
    assert f"**Scaling: {curve}**" in report.text([results])
    assert [name for name, _ in plots.draw(results)] == [f"scaling-{curve}"]


def test_the_curve_of_views(base: Case) -> None:
    found: list[dict[str, Any]] = []
    scaling.run(base, ["records"], 1, {"measure": "speed"}, found)
    assert [(row["x"], row["shards"]) for row in found[0]["rows"]] == [(200, 2), (400, 3)]
    for row in found[0]["rows"]:
        assert row["rounds"][0].keys() == set(plots.VIEW), row
        assert min(row["rounds"][0].values()) > 0
    results = {"command": "scaling", "machine": MACHINE, "settings": SETTINGS, "curves": found}
    assert "order seconds" in report.text([results])
    assert [name for name, _ in plots.draw(results)] == ["scaling-records"]


def test_what_a_view_costs_is_measured_at_its_size(base: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def seen(records: Any, *rest: Any) -> Any:
        sizes.append((len(records), len(np.unique(records.table["shard"]))))
        return dp.Plan(records, *rest)

    monkeypatch.setattr("benchmarks.views.Plan", seen)
    views.costs(base, 1100, 4)
    assert sizes == [(900, 4)]  # without the 100 that are left out, and nine tenths of what is left


def test_our_scan_against_nvidia_s(base: Case) -> None:
    found: list[dict[str, Any]] = []
    scaling.run(base, ["index"], 1, {"measure": "speed"}, found)
    row = found[0]["rows"][0]
    if "skipped" in row:
        pytest.skip(row["skipped"])
    measured = row["rounds"][0]
    assert measured["records"] == views.COPIES * 50
    for state in ("warm", "cold"):
        theirs, ours = measured[f"tfrecord2idx_{state}_seconds"], measured[f"scan_{state}_seconds"]
        assert measured[f"times_faster_{state}"] == theirs / ours > 0
    results = {"command": "scaling", "machine": MACHINE, "settings": SETTINGS, "curves": found}
    assert "scan of a shard in memory" in report.text([results])
    assert not list(plots.draw(results))


def test_indexes_that_differ_are_no_measurement(base: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = tfrecord.scan
    monkeypatch.setattr(tfrecord, "scan", lambda path: (scan(path)[0] + 1, *scan(path)[1:]))
    with pytest.raises(ValueError, match="the two indexes differ"):
        views.index(base)
