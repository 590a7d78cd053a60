"""How figures move with threads, batch size, image size, shuffling and the number of records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks import rounds
from benchmarks.case import Case
from benchmarks.plan import engines

CURVES = ("threads", "batch", "image", "shuffle", "records", "index")
BATCHES = (16, 64, 256)
IMAGE_CROP = 128  # fits the smallest images
# Records and shards: ImageNet has 1.28 million in 1,024.
VIEWS = ((10_000, 8), (100_000, 80), (320_000, 256), (1_300_000, 1024))


def run(base: Case, curves: Sequence[str], times: int, task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The curves, each `{"curve": …, "rows": [{"x": …, "name": …, "rounds": […]}, …]}`."""
    return [{"curve": curve, "rows": _rows(base, curve, times, task)} for curve in curves]


def _rows(base: Case, curve: str, times: int, task: Mapping[str, Any]) -> list[dict[str, Any]]:
    if curve == "records":
        return [row for view in VIEWS for row in _view(base, *view, times)]
    if curve == "index":
        return [{**row, "x": 1} for row in rounds.interleave([base], times, {"measure": "index"})]
    points = [(x, replace(case, dtype="uint8")) for x, changed in _points(base, curve) for case in _series(changed)]
    rows = rounds.interleave([case for _, case in points], times, task)
    return [{**row, "x": x} for (x, _), row in zip(points, rows, strict=True)]


def _view(base: Case, records: int, shards: int, times: int) -> list[dict[str, Any]]:
    rows = rounds.interleave([base], times, {"measure": "view", "records": records, "shards": shards})
    return [{**row, "x": records, "shards": shards} for row in rows]


def _points(base: Case, curve: str) -> list[tuple[Any, Case]]:
    """The values along a curve, and what each makes of the case."""
    if curve == "threads":
        counts = sorted({1, base.threads, 2 * base.threads} | {2**k for k in range(base.threads.bit_length())})
        return [(threads, replace(base, threads=threads)) for threads in counts]
    if curve == "batch":
        return [(size, replace(base, batch_size=size)) for size in BATCHES]
    if curve == "shuffle":
        return [(state, replace(base, shuffle=state == "on")) for state in ("off", "on")]
    from benchmarks import photos  # loads TensorFlow

    fixed: dict[str, Any] = {
        "size": IMAGE_CROP,
        "split": "",
        "image_key": "image",
        "label_key": "label",
        "label_offset": 0,
    }
    return [(side, replace(base, data=photos.shards(side), **fixed)) for side in photos.SHORTER_SIDES]


def _series(case: Case) -> list[Case]:
    """tf.data with as many threads as the case has, and ours."""
    tuned = replace(case, pipeline="tuned", option="fixed+pool")
    return [tuned, *(replace(case, pipeline="ours", option=option) for option in engines())]
