"""What comes before the first batch, as data sets grow: views, index files, pipeline start; and NVIDIA's indexer.

No data set of a million images is needed for it: a small shard is linked under many names, and the table of records
points at its records again and again, each time with another id.
"""

import os
import runpy
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from benchmarks.case import Case, SkipError
from dali_pipe import Records, tfrecord
from dali_pipe.index_files import IndexFiles
from dali_pipe.plan import Plan

T = TypeVar("T")
EXCLUDED = 100  # records that the view leaves out
COPIES = 5  # of the data's shards, in the one that is indexed


def costs(case: Case, count: int, shards: int) -> dict[str, Any]:
    """Seconds that a view of `count` records in `shards` shards takes: view operations, order, index files, start.

    `index_seconds` come on top on a GPU, where DALI's own reader follows index files; the first batch is the CPU's.
    """
    import tf_bridge as tb

    options: dict[str, Any] = {"recipe": case.ours, "batch_size": case.batch_size, "seed": 0}
    options.update(engine="dali", device="cpu")
    next(iter(tb.from_records(case.records, **options)))  # what is loaded, compiled or cached once is not the view's
    with _scratch() as folder:
        records = synthetic(case.records, count, shards, folder)
        view_seconds, view = _timed(lambda: records.exclude(range(EXCLUDED)).split(0.9)[0])
        plan = Plan(view, case.ours, 0)
        order_seconds, order = _timed(lambda: plan.order(0))
        ticket_seconds, _ = _timed(lambda: plan.tickets(0, order))
        index_seconds, _ = _timed(lambda: IndexFiles(view).write(order))
        make_seconds, dataset = _timed(lambda: tb.from_records(view, **options))
        first_seconds, _ = _timed(lambda: next(iter(dataset)))
    return {
        "view_seconds": view_seconds,
        "order_seconds": order_seconds,
        "ticket_seconds": ticket_seconds,
        "index_seconds": index_seconds,
        "make_seconds": make_seconds,
        "first_batch_seconds": first_seconds,
    }


def synthetic(records: Records, count: int, shards: int, folder: Path) -> Records:
    """A view of `count` records, dealt evenly over `shards` links to the first shard of `records`."""
    source = records.shards[0]
    rows = records.table[records.table["shard"] == 0]
    base = folder / "shard"
    shutil.copyfile(source, base)
    paths = [folder / f"shard-{k:05d}-of-{shards:05d}" for k in range(shards)]
    for path in paths:
        os.link(base, path)
    shard = np.arange(count) * shards // count
    place = np.arange(count) - np.searchsorted(shard, np.arange(shards))[shard]  # in its shard
    table = rows[place % len(rows)]
    table["id"], table["shard"] = np.arange(count), shard
    return replace(records, shards=tuple(paths), table=table, stamps=(), faults=())


def index(case: Case) -> dict[str, Any]:
    """Seconds that our scan of a shard's frames takes, and NVIDIA's script: its file in memory, and on disk only.

    Neither's interpreter is started. The script would import TensorFlow first; here it finds none, which spares it
    seconds.
    """
    script = Path(sysconfig.get_path("scripts")) / "tfrecord2idx"
    if not script.exists():
        raise SkipError("tfrecord2idx, which comes with DALI, is not installed")
    with _scratch() as folder:
        shard = _joined(case.files, folder / "shard")
        seconds = {}
        for state in ("cold", "warm"):
            if state == "cold":
                _forget(shard)
            seconds[f"tfrecord2idx_{state}_seconds"], _ = _timed(lambda: _tfrecord2idx(script, shard, folder / "index"))
            if state == "cold":
                _forget(shard)
            seconds[f"scan_{state}_seconds"], found = _timed(lambda: tfrecord.scan(shard))
        spans, size = np.stack(found, 1), shard.stat().st_size
        if not np.array_equal(np.loadtxt(folder / "index", np.int64, ndmin=2), spans):
            raise ValueError("the two indexes differ")
    ratios = {
        f"times_faster_{state}": seconds[f"tfrecord2idx_{state}_seconds"] / seconds[f"scan_{state}_seconds"]
        for state in ("warm", "cold")
    }
    return {"records": len(spans), "megabytes": size / 1e6, **seconds, **ratios}


def _joined(files: Sequence[str], target: Path) -> Path:
    """One shard of all of these, several times over."""
    with open(target, "wb") as out:
        for path in [*files] * COPIES:
            with open(path, "rb") as part:
                shutil.copyfileobj(part, out)
    return target


def _forget(path: Path) -> None:
    """Have the kernel drop the file from its memory."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _tfrecord2idx(script: Path, shard: Path, target: Path) -> None:
    without_tensorflow: dict[str, Any] = {"tensorflow": None}
    with (
        mock.patch.dict(sys.modules, without_tensorflow),
        mock.patch.object(sys, "argv", ["", str(shard), str(target)]),
    ):
        runpy.run_path(str(script))


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dali-tf-bench-") as folder:
        yield Path(folder)
