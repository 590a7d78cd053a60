"""How an epoch is dealt to many replicas, without any image: balance, time, memory, files.

    python -m benchmarks.distribute_plan --records 1280000 --shards 1024 --replicas 8 16 32 64 128 256

Each line is measured in a process of its own, which does what one replica does as an epoch begins: the order, its
stride's tickets, the index files of DALI's reader.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

import dali_pipe as dp
from dali_pipe.index_files import IndexFiles
from dali_pipe.plan import Plan
from dali_pipe.scan import RECORD

SHUFFLES: tuple[Literal[True], Literal["exact"]] = (True, "exact")
EPOCHS = 3
CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to deal.

    Attributes:
        records: in the view.
        shards: that they are in, equally.
        replicas: to deal to.
        shuffle: as of a data set.
        share: records a replica takes of a batch.
    """

    records: int
    shards: int
    replicas: int
    shuffle: Literal[True, "exact"] = True
    share: int = 256


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """What came of it.

    Attributes:
        apart: batches that the largest stride has more than the smallest.
        plan_seconds: to make an epoch's order and a stride's tickets, at worst.
        write_seconds: to write the epoch's index files, at worst; 0 where the bytes are fed instead.
        megabytes: the most memory that the process ever had.
        files: index files of an epoch, at most.
        left_after: files that are left when all is over.
    """

    apart: int
    plan_seconds: float
    write_seconds: float
    megabytes: float
    files: int
    left_after: int


def view(count: int, shards: int) -> dp.Records:
    """Records of photographs that nobody has: sorted by class, sizes as ImageNet's."""
    rng = np.random.default_rng(0)
    table = np.zeros(count, RECORD)
    table["id"] = np.arange(count)
    table["shard"] = np.arange(count) * shards // count
    table["length"] = rng.integers(60_000, 180_000, count)
    ends = np.cumsum(table["length"])
    first = np.searchsorted(table["shard"], table["shard"])
    table["offset"] = ends - table["length"] - (ends[first] - table["length"][first])
    table["image_offset"], table["image_length"] = table["offset"] + 100, table["length"] - 116
    table["label"] = np.arange(count) * CLASSES // count
    table["height"], table["width"] = rng.integers(300, 500, (2, count))
    table["orientation"] = 1
    paths = tuple(Path(f"/data/train-{k:05d}-of-{shards:05d}") for k in range(shards))
    return dp.Records(paths, table, dp.Schema())


def deal(case: Case) -> Dealt:
    """Deal some epochs as the last replica does, in this process."""
    records, recipe = view(case.records, case.shards), dp.imagenet_train(224)
    strides = [len(Plan(records, recipe, 0, case.shuffle, rank, case.replicas)) for rank in range(case.replicas)]
    plan = Plan(records, recipe, 0, case.shuffle, case.replicas - 1, case.replicas)
    native = case.shuffle is True or case.records <= plan.max_segments
    index = IndexFiles(records, case.replicas) if native else None
    planned, written, files = list[float](), list[float](), 0
    for epoch in range(EPOCHS):
        began = time.perf_counter()
        order = plan.order(epoch)
        plan.tickets(epoch, order, case.share)
        planned.append(time.perf_counter() - began)
        if index is not None:
            began = time.perf_counter()
            files = max(files, len(index.write(order)[1]))
            written.append(time.perf_counter() - began)
    folder = Path(index.folder) if index is not None else Path(tempfile.gettempdir(), "none")
    del index
    return Dealt(
        apart=max(strides) // case.share - min(strides) // case.share,
        plan_seconds=max(planned),
        write_seconds=max(written, default=0.0),
        megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        files=files,
        left_after=len(list(folder.iterdir())) if folder.exists() else 0,
    )


def alone(case: Case) -> Dealt:
    """`deal` in a process of its own, so that its memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(deal, (case,))


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_280_000)
    parser.add_argument("--shards", type=int, default=1024)
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    arguments = parser.parse_args(argv)
    print(f"{arguments.records:,} records in {arguments.shards:,} shards, {EPOCHS} epochs\n")
    print("| replicas | shuffle | batches apart | plan, s | files written, s | memory, MB | index files | left after |")
    print("|---|---|---|---|---|---|---|---|")
    for replicas in arguments.replicas:
        for shuffle in SHUFFLES:
            case = Case(records=arguments.records, shards=arguments.shards, replicas=replicas, shuffle=shuffle)
            r = alone(case)
            print(
                f"| {replicas} | {shuffle} | {r.apart} | {r.plan_seconds:.2f} | {r.write_seconds:.2f} "
                f"| {r.megabytes:.0f} | {r.files:,} | {r.left_after} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
