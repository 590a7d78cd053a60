"""The page of plots of `dali-tf inspect`."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from dali_pipe.advice import Advice
from dali_pipe.scan import RECORD
from dali_pipe.summary import Summary
from dali_pipe.survey import Survey
from dali_pipe.words import counted
from tf_bridge.inspect_text import TURNS
from tf_bridge.inspect_text import size as bytes_text

_INK, _FAINT, _GRID, _PAPER, _MARK = "#202124", "#6b7075", "#e2e3e2", "#fafaf8", "#c5221f"
_SPLITS = ("#2f6f9f", "#e0932f", "#5a9a68", "#8a63a6", "#a8574d", "#6d7276")
_WIDTH, _DPI, _LINE = 15.0, 100, 0.2  # inches; dots in one; inches a line of advice
_NAMED = 30  # classes with a bar and a name of their own
_LETTERS, _LISTED, _ROOM = 18, 8, 110  # of a class's name; formats; letters under an axis
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": _INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.edgecolor": "#b9bcbe",
    "axes.labelcolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "white",
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "legend.frameon": False,
}


def draw(found: Survey, summary: Summary, advised: Sequence[Advice], title: str, size: int, output: Path) -> None:
    """Write the page as a PNG.

    Args:
        found: the survey, for what is drawn record by record.
        summary: its figures.
        advised: what is written underneath.
        title: names the data.
        size: of the crop, pixels.
        output: the file.
    """
    words = [item.text for item in advised] or ["Nothing stands out."]
    lines = [line for text in words for line in _wrapped(text)]
    height = 10.9 + _LINE * len(lines)
    with mpl.rc_context(_STYLE):
        figure = Figure((_WIDTH, height), dpi=_DPI, facecolor=_PAPER)
        FigureCanvasAgg(figure)
        _title(figure, summary, title, height)
        top, bottom = 1 - 1.25 / height, (_LINE * len(lines) + 1.35) / height
        grid = figure.add_gridspec(3, 3, left=0.05, right=0.98, top=top, bottom=bottom, hspace=0.42, wspace=0.2)
        _classes(figure.add_subplot(grid[0, :2]), summary)
        _order(figure.add_subplot(grid[0, 2]), found)
        _sizes(figure.add_subplot(grid[1, 0]), found, size)
        _bytes(figure.add_subplot(grid[1, 1]), found)
        _aspects(figure.add_subplot(grid[1, 2]), found)
        _bars(figure.add_subplot(grid[2, 0]), "Formats", summary.formats)
        _bars(figure.add_subplot(grid[2, 1]), "EXIF orientation", _orientations(summary))
        _shards(figure.add_subplot(grid[2, 2]), found)
        figure.text(0.05, (_LINE * len(lines) + 0.55) / height, "Advice", va="bottom", fontsize=11)
        figure.text(0.05, (_LINE * len(lines) + 0.45) / height, "\n".join(lines), va="top", linespacing=1.5)
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, format="png", facecolor=_PAPER)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 190, initial_indent="•  ", subsequent_indent="    ", break_on_hyphens=False)


def _title(figure: Figure, summary: Summary, title: str, height: float) -> None:
    splits = ", ".join(f"{split.records:,} {name}" for name, split in summary.splits.items())
    total = sum(split.bytes for split in summary.splits.values())
    bad = f", {summary.bad:,} unusable" if summary.bad else ""
    figure.text(0.05, 1 - 0.45 / height, title, fontsize=17, va="center", weight="bold")
    shards = counted(sum(split.shards for split in summary.splits.values()), "shard", "shards")
    facts = f"{splits} records{bad} in {shards}, {bytes_text(total)}"
    figure.text(0.05, 1 - 0.78 / height, facts, fontsize=10.5, va="center", color=_FAINT)
    if len(summary.splits) > 1:
        patches = [Rectangle((0, 0), 1, 1, color=color) for color in _colors(list(summary.splits)).values()]
        place = (0.98, 1 - 0.6 / height)
        columns = min(6, len(patches))
        figure.legend(
            patches, list(summary.splits), loc="center right", bbox_to_anchor=place, ncols=columns, fontsize=11,
            handlelength=1.0, borderaxespad=0,
        )  # fmt: skip


def _colors(names: Sequence[str]) -> dict[str, str]:
    return {name: _SPLITS[place % len(_SPLITS)] for place, name in enumerate(names)}


def _column(found: Survey, split: str, name: str) -> NDArray[np.int64]:
    parts = [shard.table[name] for shard in found.of(split)]
    return np.concatenate([np.empty(0, RECORD[name]), *parts]).astype(np.int64)


def _classes(axes: Any, summary: Summary) -> None:
    counts = summary.classes
    axes.set_title(f"Classes: {np.count_nonzero(counts):,}")
    axes.set_ylabel("records")
    if not len(counts):
        _nothing(axes, "no labels")
        return
    few = len(counts) <= _NAMED
    order = np.arange(len(counts)) if few else counts.argsort(kind="stable")[::-1]
    below = np.zeros(len(counts), np.int64)
    colors = _colors(list(summary.splits))
    for name, split in summary.splits.items():
        part = np.pad(np.array(split.classes, np.int64), (0, len(counts) - len(split.classes)))[order]
        axes.bar(np.arange(len(counts)), part, 0.8 if few else 1.0, below, color=colors[name])
        below = below + part
    axes.grid(axis="x", visible=False)
    axes.margins(x=0.01)
    if few:
        names = [_class(summary, label) for label in order.tolist()]
        tilt = 35 if len(names) * max(map(len, names)) > _ROOM else 0
        axes.set_xticks(
            range(len(names)), names, rotation=tilt, ha="right" if tilt else "center", va="top" if tilt else "baseline"
        )
        axes.tick_params(axis="x", length=0, pad=4 if tilt else 13)
    else:
        axes.set_xlabel("classes, the most frequent first")


def _class(summary: Summary, label: int) -> str:
    if label >= len(summary.class_names):
        return str(label)
    return textwrap.shorten(summary.class_names[label], _LETTERS, placeholder="…") or str(label)


def _order(axes: Any, found: Survey) -> None:
    """Labels along the file: a diagonal where they are sorted, an even grey where they are mixed."""
    split = max(found.splits, key=lambda name: len(_column(found, name, "label")))
    labels = _column(found, split, "label") - found.schema.label_offset
    axes.set_title(f"Labels in the files' order: {split}")
    axes.grid(visible=False)
    if found.schema.label_key is None or not len(labels):
        _nothing(axes, "no labels")
        return
    classes = int(labels.max() - labels.min()) + 1
    bins = (min(120, len(labels)), min(60, classes))
    places = (np.arange(len(labels)), labels)
    ranges = ((0, len(labels)), (labels.min() - 0.5, labels.max() + 0.5))
    density, _, _ = np.histogram2d(*places, bins=bins, range=ranges)
    extent = (*ranges[0], *ranges[1])
    axes.imshow(density.T, aspect="auto", origin="lower", cmap="Blues", extent=extent, interpolation="nearest")
    axes.set(xlabel="record", ylabel="label")
    axes.yaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _sizes(axes: Any, found: Survey, size: int) -> None:
    """A dot for each size that occurs, the larger the more images have it."""
    axes.set_title("Sizes, px")
    longest = float(size)
    for split, color in _colors(found.splits).items():
        sides = np.stack([_column(found, split, "width"), _column(found, split, "height")], axis=1)
        distinct, counts = np.unique(sides, axis=0, return_counts=True)
        area = 8 + 400 * counts / max(counts.sum(), 1)
        axes.scatter(distinct[:, 0], distinct[:, 1], area, color=color, alpha=0.45, linewidths=0)
        longest = max(longest, *(np.percentile(sides, 99.5, axis=0) if len(sides) else ()))
    axes.add_patch(Rectangle((0, 0), size, size, fill=False, ec=_MARK, lw=1.4, zorder=3, clip_on=False))
    axes.text(size * 0.5, size * 0.5, f"crop\n{size}", color=_MARK, ha="center", va="center")
    axes.set(xlim=(0, longest * 1.08), ylim=(0, longest * 1.08), xlabel="width", ylabel="height")


def _bytes(axes: Any, found: Survey) -> None:
    axes.set_title("Encoded size")
    kilobytes = {split: _column(found, split, "image_length") / 1024 for split in found.splits}
    high = max((float(np.percentile(values, 99.5)) for values in kilobytes.values() if len(values)), default=1.0)
    _histogram(axes, found, kilobytes, np.linspace(0, high, 61))
    axes.set_xlabel("KB")


def _aspects(axes: Any, found: Survey) -> None:
    axes.set_title("Aspect, width / height")
    ratios = {s: _column(found, s, "width") / np.maximum(_column(found, s, "height"), 1) for s in found.splits}
    together = np.concatenate(list(ratios.values()))
    low, high = np.percentile(together, (0.5, 99.5))
    extreme = max(1 / low, high)
    ends = 1.05 * next((tick for tick in (1.5, 2, 3, 5, 10) if tick >= extreme), extreme)  # a tick beside every bar
    _histogram(axes, found, ratios, np.geomspace(1 / ends, ends, 61))
    axes.set_xscale("log")
    usual = (0.5, 0.67, 0.75, 1, 1.33, 1.5, 2) if ends < 2.5 else (0.1, 0.2, 0.33, 0.5, 0.75, 1, 1.33, 2, 3, 5, 10)
    ticks = [tick for tick in usual if 1 / ends <= tick <= ends]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"median {np.median(together):.2f}")


def _histogram(axes: Any, found: Survey, values: Mapping[str, NDArray[Any]], edges: NDArray[Any]) -> None:
    """Each split's share in percent, so that small splits show beside large ones."""
    for split, color in _colors(found.splits).items():
        inside = np.clip(values[split], edges[0], edges[-1])
        weights = np.full(len(inside), 100 / max(len(inside), 1))
        axes.hist(inside, edges, weights=weights, color=color, alpha=0.55)
    axes.set_ylabel("% of the split")
    axes.grid(axis="x", visible=False)


def _orientations(summary: Summary) -> dict[str, int]:
    return {f"{turn}, {TURNS.get(turn, '?')}": count for turn, count in summary.orientations.items()}


def _bars(axes: Any, title: str, counts: Mapping[str, int]) -> None:
    axes.set_title(title)
    total = max(sum(counts.values()), 1)
    names = list(counts)[:_LISTED]
    for place, name in enumerate(names):
        axes.barh(place, 100, 0.2, color=_GRID)
        axes.barh(place, 100 * counts[name] / total, 0.2, color=_SPLITS[0])
        axes.text(0, place - 0.18, name, va="bottom")
        share = f"{counts[name]:,}  ({counts[name] / total:.1%})"
        axes.text(100, place - 0.18, share, va="bottom", ha="right", color=_FAINT)
    axes.set(xlim=(0, 100), ylim=(_LISTED - 0.6, -0.7))
    axes.set_axis_off()


def _shards(axes: Any, found: Survey) -> None:
    axes.set_title(f"Shards: {len(found.shards):,}")
    megabytes = np.array([shard.bytes for shard in found.shards]) / (1 << 20)
    colors = _colors(found.splits)
    axes.bar(range(len(megabytes)), megabytes, 0.8, color=[colors[shard.source.split] for shard in found.shards])
    for place, shard in enumerate(found.shards):
        if shard.problem:
            axes.plot(place, 0, "x", color=_MARK, ms=8, mew=2, clip_on=False, zorder=4)
    axes.set(xlabel="shard", ylabel="MB")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.grid(axis="x", visible=False)


def _nothing(axes: Any, words: str) -> None:
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=_FAINT)
    axes.set(xticks=(), yticks=())
