"""The plots, as PNG bytes."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none is there on a server

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from benchmarks.rounds import Spread, form, spread

OURS, OTHERS, LIMITS, WAITING = "#3a7d34", "#8a8f98", "#d4b03a", "#c0504d"
_LABELS = {"images_per_second": "images/s", "cpu_ms_per_image": "host CPU, ms per image"}
_THOUSANDS = "{x:,g}"
_ALONG = {
    "threads": "CPU threads",
    "batch": "batch, images",
    "image": "shorter side of the images, pixels",
    "shuffle": "shuffling",
    "records": "records",
}
VIEW = ("view_seconds", "order_seconds", "ticket_seconds", "index_seconds", "make_seconds", "first_batch_seconds")

Row = Mapping[str, Any]


def draw(results: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """`(name, PNG)` of each plot of one saved result."""
    if results["command"] == "run":
        for recipe in dict.fromkeys(row["case"]["recipe"] for row in results["rows"]):
            rows = [row for row in results["rows"] if row["rounds"] and row["case"]["recipe"] == recipe]
            yield f"speed-{recipe}", _png(_bars(rows), recipe, results)
    elif results["command"] == "share":
        rows = [row for row in results["rows"] if row["rounds"]]
        yield "share", _png(_shares(rows), "training steps", results)
    else:
        for curve in results["curves"]:
            rows = [row for row in curve["rows"] if row["rounds"]]
            if rows and curve["curve"] != "index":
                yield f"scaling-{curve['curve']}", _png(_curve(curve["curve"], rows), curve["curve"], results)


def _bars(rows: Sequence[Row]) -> Figure:
    shown = [row for row in rows if row["case"]["pipeline"] != "limit_copy"]  # thirty times the others
    figure = Figure((11, 0.38 * len(shown) + 1.6), layout="constrained")
    both = figure.subplots(1, len(_LABELS), sharey=True)
    for key, axes in zip(_LABELS, both, strict=True):
        _bar_axes(axes, shown, key)
    both[0].invert_yaxis()  # of both: the first row is on top
    return figure


def _bar_axes(axes: Axes, rows: Sequence[Row], key: str) -> None:
    names = [f"{row['name']} {row['case']['dtype']}" for row in rows]
    for place, row in enumerate(rows):
        value = spread(row, key)
        assert value is not None
        axes.barh(place, value.median, color=_color(row), xerr=_errors([value]), ecolor="#444", capsize=2)
        axes.text(value.high, place, f"  {value.median:{form(value.median)}}", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.margins(x=0.15)
    axes.set_xlabel(_LABELS[key])
    axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.spines[["top", "right"]].set_visible(False)


def _errors(values: Sequence[Spread]) -> list[list[float]]:
    """As matplotlib takes them: below the median, above it."""
    return [[value.median - value.low for value in values], [value.high - value.median for value in values]]


def _color(row: Row) -> str:
    pipeline = row["case"]["pipeline"]
    return OURS if pipeline == "ours" else LIMITS if pipeline.startswith("limit") else OTHERS


def _shares(rows: Sequence[Row]) -> Figure:
    figure = Figure((9, 0.38 * len(rows) + 1.6), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        step, cached = spread(row, "step_ms"), spread(row, "cached_step_ms")
        assert step is not None and cached is not None
        waiting, error = max(0.0, step.median - cached.median), _errors([step])
        axes.barh(place, cached.median, color=OTHERS, label="the model" if place == 0 else None)
        axes.barh(
            place, waiting, left=cached.median, color=WAITING, label="waiting for input" if place == 0 else None,
            xerr=error, ecolor="#444", capsize=2,
        )  # fmt: skip
    names = [f"{row['case']['recipe']} {row['name']} {row['case']['dtype']}{_simulated(row)}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel("training step, ms")
    if rows:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _simulated(row: Row) -> str:
    return " (simulated)" if row["rounds"][0]["simulated"] else ""


def _curve(name: str, rows: Sequence[Row]) -> Figure:
    figure = Figure((10, 4), layout="constrained")
    if name == "records":
        _lines(figure.subplots(), rows, VIEW, log=True)
    else:
        for key, axes in zip(_LABELS, figure.subplots(1, 2), strict=True):
            _series(axes, rows, key, log=name in ("threads", "batch"))
            axes.set_xlabel(_ALONG[name])
    return figure


def _series(axes: Axes, rows: Sequence[Row], key: str, log: bool) -> None:
    """A line for each pipeline."""
    for name in dict.fromkeys(row["name"] for row in rows):
        of_it = [row for row in rows if row["name"] == name]
        _line(axes, of_it, key, name)
    _finish(axes, _LABELS[key], log)
    axes.set_xticks(list(dict.fromkeys(row["x"] for row in rows)))
    axes.minorticks_off()
    if log:
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _lines(axes: Axes, rows: Sequence[Row], keys: Sequence[str], log: bool) -> None:
    """A line for each figure of one pipeline."""
    for key in keys:
        _line(axes, rows, key, key.removesuffix("_seconds").replace("_", " "))
    _finish(axes, "seconds", log)
    axes.set_xlabel(_ALONG["records"])
    axes.set_yscale("log" if log else "linear")


def _line(axes: Axes, rows: Sequence[Row], key: str, label: str) -> None:
    found = [(row["x"], value) for row in rows if (value := spread(row, key))]
    values = [value for _, value in found]
    medians = [value.median for value in values]
    axes.errorbar([x for x, _ in found], medians, _errors(values), marker="o", capsize=2, label=label)


def _finish(axes: Axes, label: str, log: bool) -> None:
    axes.set_ylabel(label)
    if label != "seconds":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_THOUSANDS)
    if log:
        axes.set_xscale("log", base=10 if label == "seconds" else 2)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _png(figure: Figure, title: str, results: Mapping[str, Any]) -> bytes:
    """With its machine and date in the title."""
    machine, rounds = results["machine"], results["settings"]["rounds"]
    gpus = [f"{count} × {name}" if count > 1 else name for name, count in Counter(machine["gpus"]).items()]
    place = f"{machine['cpu']}, {machine['cores']} cores, {', '.join(gpus) or 'no GPU'}; {machine['date'][:10]}"
    figure.suptitle(f"{title}: median, lowest and highest of {rounds} rounds\n{place}", fontsize=10, wrap=True)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
