"""What the benchmarks measure, with a clock of the tests' own; each pipeline's batches; and the report."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import goals, pipelines, plan, plots, report, rounds, share, views
from benchmarks.case import Case, SkipError
from benchmarks.rounds import Spread
from tests import support
from tf_bridge import measure

BATCH = 4


class Clock(measure.Clock):
    """Moves when somebody does something."""

    def __init__(self) -> None:
        self.time = self.used = 0.0

    def now(self) -> float:
        return self.time

    def cpu(self) -> float:
        return self.used

    def memory(self) -> int:
        return 7_000_000

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class Batches:
    """Epochs of some batches; each takes its time, an epoch's first takes longer."""

    def __init__(self, clock: Clock, steps: int, wait: float = 0.1, begin: float = 0.0):
        self._clock, self._steps, self._wait, self._begin = clock, steps, wait, begin
        self.epochs = 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        self._clock.time += self._begin
        for _ in range(self._steps):
            self._clock.time += self._wait
            self._clock.used += 0.02
            yield np.zeros((BATCH, 2, 2, 3)), np.arange(BATCH)


def test_a_steady_stream() -> None:
    clock = Clock()
    found = measure.measure(Batches(clock, 1000, wait=0.5), warm_up=10, seconds=20, clock=clock)
    assert found.first_batch_seconds == pytest.approx(0.5)
    assert found.images_per_second == pytest.approx(8)
    assert found.cpu_ms_per_image == pytest.approx(5)
    assert (found.epochs, found.images, found.peak_memory_mb) == (0, 160, 7.0)


def test_whole_epochs_with_what_their_beginnings_cost() -> None:
    clock = Clock()
    found = measure.measure(Batches(clock, 10, wait=0.1, begin=1.0), warm_up=0.35, seconds=3, clock=clock)
    assert found.first_batch_seconds == pytest.approx(1.1)
    assert found.epochs == 2  # 3 s are one epoch and a half
    assert found.images == 80
    assert found.seconds == pytest.approx(4.0)
    assert found.images_per_second == pytest.approx(20)


def test_an_epoch_that_is_too_long_to_wait_for() -> None:
    clock = Clock()
    found = measure.measure(Batches(clock, 100, wait=0.1), warm_up=8, seconds=3, clock=clock)
    assert found.epochs == 1
    assert 6 <= found.seconds < 6.2


def test_nothing_to_measure() -> None:
    with pytest.raises(ValueError, match="the data set gives no batch"):
        measure.measure([], warm_up=0, seconds=1)


def test_the_clock_counts_children() -> None:
    burn = "import sys; sum(range(30_000_000)); print(flush=True); sys.stdin.read()"
    clock = measure.Clock()
    before, memory = clock.cpu(), clock.memory()
    with subprocess.Popen(["python3", "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = clock.cpu() - before
        with_child = clock.memory()
        assert memory is not None and with_child is not None and with_child > memory
        child.communicate()
    assert living > 0.1
    assert clock.cpu() - before >= living - 0.02


def test_input_bound_share_of_a_stand_in() -> None:
    clock = Clock()

    def shared(wait: float) -> Mapping[str, Any]:
        batches = Batches(clock, 50, wait=wait)
        return share.simulated(batches, 0.3, warm_up=1, seconds=20, now=clock.now, sleep=clock.sleep)

    assert shared(0.2)["input_bound"] == pytest.approx(0.4)
    assert shared(0.2)["step_ms"] == pytest.approx(500)
    assert shared(0.0)["input_bound"] == pytest.approx(0)
    assert shared(0.2)["simulated"] is True


def _row(name: str, *speeds: float, auto: bool = False, **case: Any) -> dict[str, Any]:
    values = [
        {
            "images_per_second": s,
            "cpu_ms_per_image": 1000 / s,
            "first_batch_seconds": 0.1,
            "start_seconds": 2.0,
            "auto": auto,
        }
        for s in speeds
    ]
    return {"case": asdict(Case(pipeline=name, data="data", **case)), "name": name, "rounds": values}


def test_ratios_are_of_one_round() -> None:
    """The machine slowed down to a half: the figures say so, the ratio does not."""
    mine, theirs = _row("ours", 200, 100, 50), _row("tuned", 100, 50, 25)
    assert rounds.spread(mine, "images_per_second") == Spread(100, 50, 200)
    assert rounds.ratio(mine, theirs, "images_per_second") == Spread(2, 2, 2)
    assert rounds.spread(mine, "gpu_percent") is None


def test_rounds_interleave_and_go_on_without_what_fails() -> None:
    cases = [Case(pipeline=name, data="d") for name in ("tuned", "ours", "question", "keras_directory")]
    order = []

    def run(task: Mapping[str, Any]) -> dict[str, Any]:
        order.append(name := task["case"]["pipeline"])
        assert task["seconds"] == 3
        bad = {"question": {"skipped": "why"}, "keras_directory": {"failed": "so"}}
        return bad.get(name, {"images_per_second": float(len(order))})

    rows = [rounds.new_row(case) for case in cases]
    rounds.interleave(rows, 3, {"measure": "speed", "seconds": 3}, run, lambda _: None)
    assert order == ["tuned", "ours", "question", "keras_directory", "tuned", "ours", "tuned", "ours"]
    assert [len(row["rounds"]) for row in rows] == [3, 3, 0, 0]
    assert (rows[2]["skipped"], rows[3]["failed"]) == ("why", "so")


def test_the_fastest_variant_of_tf_data_is_kept() -> None:
    base = Case(pipeline="ours", data="d")
    cases = plan.table(base, ["crop_train"], ["uint8"], ["tuned", "ours"])
    settled, tried = plan.settle(cases, lambda case: {"fixed": 3.0}.get(case.option, 1.0))
    assert [case.name for case in settled if case.pipeline == "tuned"] == ["tuned fixed"]
    assert {case.option for case in settled if case.pipeline == "ours"} >= {"dali/cpu", "tfdata/cpu"}
    assert tried[0]["images_per_second"]["fixed"] == 3.0  # type: ignore[index]


def test_goals() -> None:
    rows = [
        _row("ours", 120, 120, option="dali/cpu", auto=True),
        _row("ours", 500, 500, option="tfdata/cpu"),
        _row("tuned", 100, 100),
        _row("question", 30, 40, dtype="float32"),
    ]
    told = {line[0]: line[1:] for line in goals.lines(rows)}
    assert told["crop_train uint8, ours: images/s over tuned's uint8"] == ("1.20 (1.20-1.20)", "≥ 1.15", "reached")
    assert told["crop_train uint8, ours: images/s over question's float32"][0] == "3.50 (3.00-4.00)"
    assert told["crop_train uint8, ours: CPU ms/image over question's float32"][2] == "reached"
    assert not any("limit_decode" in goal for goal in told)
    rows[0] = _row("ours", 110, 110, auto=True)
    assert goals.lines(rows)[2][3] == "not reached"


def test_goal_of_the_scan() -> None:
    def told(*ratios: float) -> Any:
        return goals.index([{**_row("ours"), "rounds": [{"times_faster_warm": ratio} for ratio in ratios]}])[0][1:]

    assert told(21, 25, 20) == ("21.00 (20.00-25.00)", "≥ 20", "reached")
    assert told(19)[2] == "not reached"


def test_ctrl_c_saves_what_was_measured(
    photographs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = iter([{"images_per_second": 10.0, "cpu_ms_per_image": 1.0, "first_batch_seconds": 0.1}])

    def run(task: Mapping[str, Any]) -> dict[str, Any]:
        for found in runs:
            return {**found, "start_seconds": 1.0, "peak_memory_mb": 1.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(rounds.interleave, "__defaults__", (run, print))
    saved = tmp_path / "run.json"
    data = str(photographs[0].parent / "*")
    assert command.main([data, "--recipe", "crop_train", "--cases", "limit_copy", "--output", str(saved)]) == 130
    assert [len(row["rounds"]) for row in json.loads(saved.read_text())["rows"]] == [1, 0]
    out, err = capsys.readouterr()
    assert "Interrupted" in err and "limit_copy" in out


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["no/such/data"], "`data` must be a TFDS folder"),
        (["share", "--logs", "runs"], "`--logs` takes the profiles of `--fit`"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    err = capsys.readouterr().err
    assert rule in err and "Traceback" not in err


def test_a_view_that_is_not_there(photographs: list[Path], tmp_path: Path) -> None:
    case = Case(pipeline="ours", data=str(photographs[0].parent / "*"))
    records = views.synthetic(case.records, 1000, 7, tmp_path)
    assert len(records) == 1000
    assert np.bincount(records.table["shard"]).tolist() == [143, 143, 143, 143, 143, 143, 142]
    assert records.ids.tolist() == list(range(1000))
    one = records.table[records.table["shard"] == 3]["offset"]
    first = case.records.table[case.records.table["shard"] == 0]["offset"]
    assert one.tolist() == [first[k % len(first)] for k in range(143)]


PIPELINES = [
    ("record_input", "crop_train", "float32"),
    ("record_input", "imagenet_train", "uint8"),
    ("question", "crop_train", "float32"),
    ("question", "imagenet_train", "float32"),
    ("keras_directory", "crop_train", "float32"),
    ("tuned", "crop_train", "uint8"),
    ("tuned fixed+pool", "imagenet_train", "float32"),
    ("ours tfdata/cpu", "crop_train", "uint8"),
    ("limit_decode", "crop_train", "uint8"),
    ("limit_copy", "crop_train", "float32"),
]


@pytest.mark.parametrize(("name", "recipe", "dtype"), PIPELINES)
def test_what_a_pipeline_gives(name: str, recipe: Any, dtype: Any, tfds_folder: Path) -> None:
    pipeline, _, option = name.partition(" ")
    case = Case(
        pipeline=pipeline, option=option, data=str(tfds_folder), recipe=recipe, dtype=dtype, size=32, batch_size=8,
        threads=2,
    )  # fmt: skip
    try:
        dataset = pipelines.make(case)
    except SkipError as reason:
        pytest.skip(str(reason))
    images, labels = (np.asarray(part) for part in next(iter(dataset)))
    assert images.shape == (8, 32, 32, 3) and images.dtype == dtype
    assert labels.shape == (8,) and set(labels.tolist()) <= set(range(10))
    if dtype == "uint8":
        assert images.std() > 10
    elif pipeline != "limit_copy":
        assert -3 < images.min() < 0 < images.max() < 3


def test_the_limit_decodes_the_same_regions(tfds_folder: Path) -> None:
    same = {"data": str(tfds_folder), "size": 32, "batch_size": 8, "threads": 2}
    try:
        limit = pipelines.make(Case(pipeline="limit_decode", **same))  # type: ignore[arg-type]
    except SkipError as reason:
        pytest.skip(str(reason))
    ours = pipelines.make(Case(pipeline="ours", option="tfdata/cpu", **same))  # type: ignore[arg-type]
    for (mine, labels), (theirs, same_labels) in zip(limit, ours, strict=True):
        np.testing.assert_array_equal(labels, same_labels)
        inner = np.abs(mine.astype(int) - np.asarray(theirs).astype(int))[:, 2:-2, 2:-2]
        assert inner.mean() < 0.5  # the two libraries' edges and rounding


def test_one_command_measures_and_reports(
    photographs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two cheap cases in processes of their own, from the command to the page."""
    saved, folder = tmp_path / "run.json", tmp_path / "report"
    quick = ["--recipe", "crop_train", "--size", "32", "--batch-size", "8", "--rounds", "2", "--seconds", "0.05"]
    data = str(photographs[0].parent / "*")
    assert command.main([data, *quick, "--cases", "limit_copy", "--warm-up", "0", "--output", str(saved)]) == 0
    told = capsys.readouterr().out
    results = json.loads(saved.read_text())
    assert results["machine"]["cores"] >= 1 and results["machine"]["packages"]["numpy"]
    copies = [row for row in results["rows"] if row["name"] == "limit_copy"]
    assert [row["case"]["dtype"] for row in copies] == ["uint8", "float32"]
    assert all(len(row["rounds"]) == 2 and row["rounds"][0]["images_per_second"] > 0 for row in copies)
    assert "**crop_train: images a second" in told and "limit_copy" in told

    assert command.main(["report", str(saved), "--output", str(folder)]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "limit_copy" in page and "data:image/png;base64," in page and "http" not in page
    assert (folder / "speed-crop_train.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_saved_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    kept = {"rows": [{"data": str(tmp_path / "photos" / "1.0.0"), "rounds": (1, 2.5)}], "commit": "abc"}
    command._save(kept, tmp_path / "results.json")
    found = json.loads((tmp_path / "results.json").read_text())
    assert found == {"rows": [{"data": "photos/1.0.0", "rounds": [1, 2.5]}], "commit": "abc"}


def test_a_failing_case_says_why(tmp_path: Path) -> None:
    shard = support.write_shard(tmp_path / "empty.tfrecord", [])
    task = {
        "case": asdict(Case(pipeline="limit_copy", data=str(shard))),
        "measure": "speed",
        "warm_up": 0,
        "seconds": 1,
    }
    assert "the shard is empty" in rounds.in_process(task)["failed"]


def test_a_report_of_shares_and_curves() -> None:
    steps = {"simulated": True, "step_ms": 50.0, "cached_step_ms": 25.0, "input_bound": 0.5}
    machine = {
        "date": "2026-01-02",
        "cpu": "C",
        "cores": 2,
        "gpus": [],
        "packages": {},
        "load_before": 0,
        "commit": "x",
    }
    settings = {
        "rounds": 1,
        "seconds": 1,
        "size": 32,
        "batch_size": 4,
        "dct": "fast",
        "accelerator": 2500.0,
        "width": 64,
    }
    same = {"machine": machine, "settings": settings}
    shares = {"command": "share", **same, "rows": [{**_row("ours"), "rounds": [steps]}]}
    curves = [{"curve": "threads", "rows": [{**_row("ours", 10, 20), "x": 1}, {**_row("ours", 30, 40), "x": 2}]}]
    scaling = {"command": "scaling", **same, "curves": curves}
    told = report.text([shares, scaling])
    assert "simulated, 2,500 images/s" in told and "50% (50%-50%)" in told
    assert "Scaling: threads" in told and "15 (10-20)" in told
    assert "median (lowest-highest) of 1 rounds" in told and "crops of 32, batch 4, our inverse DCT fast" in told
    assert [name for result in (shares, scaling) for name, _ in plots.draw(result)] == ["share", "scaling-threads"]


def test_a_plot_says_what_it_shows() -> None:
    rows = [_row("ours", 10, 20, 60), _row("tuned", 12_000), _row("limit_copy", 10**6)]
    figure = plots._bars(rows)
    machine = {"date": "2026-01-02T03:04", "cpu": "C", "cores": 2, "gpus": ["G", "G"]}
    assert plots._png(figure, "crop_train", {"machine": machine, "settings": {"rounds": 3}}).startswith(b"\x89PNG")
    title = "crop_train: median, lowest and highest of 3 rounds\nC, 2 cores, 2 × G; 2026-01-02"
    assert figure.get_suptitle() == title
    speed, cpu = figure.axes
    assert (speed.get_xlabel(), cpu.get_xlabel()) == ("images/s", "host CPU, ms per image")
    assert [label.get_text() for label in speed.get_yticklabels()] == ["ours uint8", "tuned uint8"]
    assert all(bottom > top for bottom, top in (axes.get_ylim() for axes in figure.axes))  # the first is on top
    assert [text.get_text().strip() for text in speed.texts] == ["20", "12,000"]
    whiskers = speed.collections[0].get_segments()[0]  # type: ignore[attr-defined]
    assert whiskers[:, 0].tolist() == [10, 60]


def test_a_table_of_failures_says_why() -> None:
    failed = {**_row("ours"), "failed": "ended by SIGSEGV"}
    told = [
        report.tables({"command": "run", "rows": [failed], "variants": []}),
        report.tables({"command": "share", "rows": [failed], "settings": {}}),
        report.tables({"command": "scaling", "curves": [{"curve": "batch", "rows": [{**failed, "x": 16}]}]}),
    ]
    assert [[table.note for table in tables] for tables in told] == 3 * [
        ["crop_train uint8 ours failed: ended by SIGSEGV"]
    ]
    assert "ended by SIGSEGV" in report.markdown(told[0][0])
