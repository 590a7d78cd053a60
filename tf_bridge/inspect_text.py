"""The tables of `dali-tf inspect`."""

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

from dali_pipe.advice import Advice
from dali_pipe.summary import PERCENTILES, Summary
from dali_pipe.survey import Field
from dali_pipe.words import counted
from tf_bridge.columns import columns
from tf_bridge.inspect_features import Declared

_ALL, _ENDS, _BAR, _NAME = 20, 5, 24, 28  # classes listed in full; at each end of a longer list; letters
_WIDEST = 110
TURNS = {
    1: "upright",
    2: "mirrored",
    3: "upside down",
    4: "mirrored, upside down",
    5: "mirrored, to turn left",
    6: "to turn right",
    7: "mirrored, to turn right",
    8: "to turn left",
}


def text(summary: Summary, features: Mapping[str, Declared], advised: Sequence[Advice], stream: TextIO) -> str:
    """Every table, and the advice; `features` as the data set declares them, by key."""
    sections = [
        _splits(summary),
        _fields(summary, features),
        _images(summary),
        _formats(summary),
        _classes(summary, _bars(stream)),
        _duplicates(summary),
        _advice(advised),
    ]
    return "\n\n".join(section for section in sections if section)


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Cells in columns, the first `left` of them flush left, the others flush right."""
    return columns(rows, right=range(left, len(rows[0])))


def _splits(summary: Summary) -> str:
    rows = [["split", "records", "bad", "classes", "shards", "size", "records a shard", "size of a shard"]]
    for name, split in summary.splits.items():
        present = sum(count > 0 for count in split.classes)
        counts = [f"{split.records:,}", f"{split.bad:,}", f"{present:,}", f"{split.shards:,}", size(split.bytes)]
        records = _span([f"{n:,.0f}" for n in split.shard_records])
        rows.append([name, *counts, records, _span([size(n) for n in split.shard_bytes])])
    return table(rows)


def _span(low_middle_high: Sequence[str]) -> str:
    low, _, high = low_middle_high
    return low if low == high else f"{low} to {high}"


def _fields(summary: Summary, features: Mapping[str, Declared]) -> str:
    rows = [["key", "type", "in records", ""]]
    whole = max((field.records for field in summary.fields.values()), default=0)
    for key, field in sorted(summary.fields.items()):
        role = {summary.image_key: "the image", summary.label_key: "the label"}.get(key, "")
        share = "all" if field.records == whole else f"{field.records:,}"
        rows.append([key, shape(field), share, ", ".join(filter(None, (role, str(features.get(key, "")))))])
    return table(rows, left=4)


def shape(field: Field) -> str:
    """Type and number of values, such as `int64[4]` or `float[0 to 12]`."""
    if (field.least, field.most) == (1, 1):
        return field.kind
    return f"{field.kind}[{_span([str(field.least), '', str(field.most)])}]"


def _images(summary: Summary) -> str:
    if not summary.images:
        return ""
    heads = {0: "least", 50: "median", 100: "most"}
    rows = [["image", *(heads.get(p, f"{p}%") for p in PERCENTILES)]]
    for name, values in summary.images.items():
        rows.append([name, *(_measure(name, value) for value in values)])
    return table(rows)


def _measure(name: str, value: float) -> str:
    if name == "bytes":
        return size(value)
    return f"{value:.2f}" if name == "aspect" else f"{value:,.0f}"


def _formats(summary: Summary) -> str:
    if not summary.records:
        return ""
    turns = {f"{turn}, {TURNS.get(turn, '?')}": count for turn, count in summary.orientations.items()}
    columns = {"format": summary.formats, "EXIF orientation": turns}
    return "\n\n".join(_shares(head, counts, summary.records) for head, counts in columns.items())


def _shares(head: str, counts: Mapping[str, int], whole: int) -> str:
    return table([[head, "images", ""], *([name, f"{n:,}", f"{n / whole:.1%}"] for name, n in counts.items())])


def _classes(summary: Summary, bar: str) -> str:
    counts = summary.classes
    if not len(counts):
        return ""
    order = counts.argsort(kind="stable")[::-1].tolist() if len(counts) > _ALL else list(range(len(counts)))
    shown = order if len(order) <= _ALL else [*order[:_ENDS], -1, *order[-_ENDS:]]
    most = int(counts.max())
    rows = [["class", "records", ""]]
    for label in shown:
        if label < 0:
            rows.append([f"… {len(order) - 2 * _ENDS:,} classes between …", "", ""])
        else:
            rows.append([_name(summary, label), f"{counts[label]:,}", bar * round(_BAR * counts[label] / max(most, 1))])
    return columns(rows, right={1})


def _name(summary: Summary, label: int) -> str:
    names = summary.class_names
    return textwrap.shorten(names[label], _NAME, placeholder="…") if label < len(names) else str(label)


def _bars(stream: TextIO) -> str:
    try:
        "█…".encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return "#"
    return "█"


def _duplicates(summary: Summary) -> str:
    groups = summary.duplicates
    if not groups:
        return "Duplicates:  none"
    images, across = sum(len(group.copies) for group in groups), sum(len(group.splits) > 1 for group in groups)
    where = counted(len(groups), "group", "groups")
    return f"Duplicates:  {images:,} images in {where} of equal bytes, {across:,} of them across splits"


def _advice(advised: Sequence[Advice]) -> str:
    if not advised:
        return "Advice:      nothing stands out."
    width = min(_WIDEST, shutil.get_terminal_size().columns)
    wrapped = (textwrap.fill(item.text, width, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
                             break_on_hyphens=False) for item in advised)  # fmt: skip
    return "Advice\n" + "\n".join(wrapped)


def size(count: float) -> str:
    """Bytes for people: three digits and a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TB"
