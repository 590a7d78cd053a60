"""The plots, as PNG bytes."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none is there on a server

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from benchmarks.rounds import spread

OURS, OTHERS, LIMITS = "#3a7d34", "#8a8f98", "#d4b03a"
_LABELS = {"images_per_second": "images/s", "cpu_ms_per_image": "host CPU ms per image"}
_VIEW = ("view_seconds", "order_seconds", "ticket_seconds", "index_seconds", "make_seconds", "first_batch_seconds")

Row = Mapping[str, Any]


def draw(results: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """`(name, PNG)` of each plot of one saved result."""
    if results["command"] == "run":
        for recipe in dict.fromkeys(row["case"]["recipe"] for row in results["rows"]):
            rows = [row for row in results["rows"] if row["rounds"] and row["case"]["recipe"] == recipe]
            yield f"speed-{recipe}", _bars(rows, ("images_per_second", "cpu_ms_per_image"), recipe)
    elif results["command"] == "share":
        yield "share", _shares([row for row in results["rows"] if row["rounds"]])
    else:
        for curve in results["curves"]:
            rows = [row for row in curve["rows"] if row["rounds"]]
            if rows and curve["curve"] != "index":
                yield f"scaling-{curve['curve']}", _curve(curve["curve"], rows)


def _bars(rows: Sequence[Row], keys: Sequence[str], title: str) -> bytes:
    shown = [row for row in rows if row["case"]["pipeline"] != "limit_copy"]  # thirty times the others
    figure = Figure((11, 0.38 * len(shown) + 1.6), layout="constrained")
    for key, axes in zip(keys, figure.subplots(1, len(keys), sharey=True), strict=True):
        _bar_axes(axes, shown, key)
    figure.suptitle(f"{title}: median, lowest and highest of the rounds")
    return _png(figure)


def _bar_axes(axes: Axes, rows: Sequence[Row], key: str) -> None:
    names = [f"{row['name']} {row['case']['dtype']}" for row in rows]
    for place, row in enumerate(rows):
        value = spread(row, key)
        assert value is not None
        error = [[value.median - value.low], [value.high - value.median]]
        axes.barh(place, value.median, color=_color(row), xerr=error, ecolor="#444", capsize=2)
        axes.text(value.high, place, f"  {value.median:,.4g}", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(_LABELS.get(key, key))
    axes.spines[["top", "right"]].set_visible(False)


def _color(row: Row) -> str:
    pipeline = row["case"]["pipeline"]
    return OURS if pipeline == "ours" else LIMITS if pipeline.startswith("limit") else OTHERS


def _shares(rows: Sequence[Row]) -> bytes:
    figure = Figure((9, 0.38 * len(rows) + 1.6), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        step, cached = spread(row, "step_ms"), spread(row, "cached_step_ms")
        assert step is not None and cached is not None
        axes.barh(place, cached.median, color=OURS, label="the model" if place == 0 else None)
        waiting = max(0.0, step.median - cached.median)
        axes.barh(
            place, waiting, left=cached.median, color="#c0504d", label="waiting for input" if place == 0 else None
        )
    names = [f"{row['case']['recipe']} {row['name']} {row['case']['dtype']}{_simulated(row)}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel("training step, ms")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def _simulated(row: Row) -> str:
    return " (simulated)" if row["rounds"][0]["simulated"] else ""


def _curve(name: str, rows: Sequence[Row]) -> bytes:
    figure = Figure((10, 4), layout="constrained")
    if name == "records":
        _lines(figure.subplots(), rows, _VIEW, log=True)
    else:
        for key, axes in zip(_LABELS, figure.subplots(1, 2), strict=True):
            _series(axes, rows, key, log=name in ("threads", "batch"))
    figure.suptitle(f"Scaling: {name}")
    return _png(figure)


def _series(axes: Axes, rows: Sequence[Row], key: str, log: bool) -> None:
    """A line for each pipeline."""
    for name in dict.fromkeys(row["name"] for row in rows):
        of_it = [row for row in rows if row["name"] == name]
        values = [spread(row, key) for row in of_it]
        medians = [value.median for value in values if value]
        errors = [[v.median - v.low for v in values if v], [v.high - v.median for v in values if v]]
        axes.errorbar([row["x"] for row in of_it], medians, errors, marker="o", capsize=2, label=name)
    _finish(axes, _LABELS[key], log)
    axes.set_xticks(list(dict.fromkeys(row["x"] for row in rows)))
    axes.minorticks_off()
    if log:
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _lines(axes: Axes, rows: Sequence[Row], keys: Sequence[str], log: bool) -> None:
    """A line for each figure of one pipeline."""
    for key in keys:
        points = [(row["x"], value.median) for row in rows if (value := spread(row, key))]
        axes.plot(*zip(*points, strict=True), marker="o", label=key.removesuffix("_seconds").replace("_", " "))
    _finish(axes, "seconds", log)
    axes.set_xlabel("records")
    axes.set_yscale("log" if log else "linear")


def _finish(axes: Axes, label: str, log: bool) -> None:
    axes.set_ylabel(label)
    if label != "seconds":
        axes.set_ylim(bottom=0)
    if log:
        axes.set_xscale("log", base=10 if label == "seconds" else 2)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
