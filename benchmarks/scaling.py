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


def run(base: Case, curves: Sequence[str], times: int, task: Mapping[str, Any], found: list[dict[str, Any]]) -> None:
    """Measure the curves, and add each to `found`: `{"curve": …, "rows": [{"x": …, "name": …, "rounds": […]}, …]}`."""
    for curve in curves:
        rows = _rows(base, curve)
        found.append({"curve": curve, "rows": rows})
        if curve == "records":
            for row in rows:
                rounds.interleave(
                    [row], times, {**task, "measure": "view", "records": row["x"], "shards": row["shards"]}
                )
        else:
            rounds.interleave(rows, times, {**task, "measure": "index"} if curve == "index" else task)


def _rows(base: Case, curve: str) -> list[rounds.Row]:
    if curve == "records":
        return [rounds.new_row(base, x=records, shards=shards) for records, shards in VIEWS]
    if curve == "index":
        return [rounds.new_row(base, x=1)]
    return [rounds.new_row(case, x=x) for x, changed in _points(base, curve) for case in _series(changed)]


def _points(base: Case, curve: str) -> list[tuple[Any, Case]]:
    """The values along a curve, and what each makes of the case."""
    if curve == "threads":
        counts = sorted({1, base.threads, 2 * base.threads} | {2**k for k in range(base.threads.bit_length())})
        return [(threads, replace(base, threads=threads)) for threads in counts]
    if curve == "batch":
        return [(size, replace(base, batch_size=size)) for size in BATCHES]
    if curve == "shuffle":
        return [(state, replace(base, shuffle=state == "on")) for state in ("off", "on")]
    from tf_bridge import quiet

    quiet.load_frameworks()
    from benchmarks import photos

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
