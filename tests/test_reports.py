"""What users of such pipelines have reported elsewhere, and must not meet here; beside what other files test."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
import tf_bridge as tb
from tests import support
from tf_bridge.choice import EngineName

TRAIN = dp.Recipe((dp.RandomCrop(16),), "uint8")


def _labels(dataset: Any) -> list[int]:
    return [int(n) for _, labels in dataset for n in labels.numpy()]


def test_an_epoch_ends_and_the_next_is_as_long(photographs: list[Path], engine: EngineName) -> None:
    options: dict[str, Any] = {"recipe": dp.crop_eval(16), "engine": engine}
    ten = tb.from_records(dp.from_files(photographs).take(10), batch_size=4, **options)
    for _ in range(3):
        assert [labels.numpy().tolist() for _, labels in ten] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    hundred = tb.from_tfrecords([*photographs, *photographs], batch_size=32, **options)
    assert [sum(1 for _ in hundred) for _ in range(3)] == [4, 4, 4]


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_replica_without_a_record_is_refused_before_anything_is_built(
    photographs: list[Path], engine: EngineName, drop_remainder: bool
) -> None:
    ten = dp.from_files(photographs).take(10)
    options: dict[str, Any] = {"recipe": dp.crop_eval(16), "engine": engine, "drop_remainder": drop_remainder}
    for rank in (0, 9):
        assert len(tb.from_records(ten, batch_size=1, shard=(rank, 10), **options)) == 1
    for rank in (0, 11):
        with pytest.raises(ValueError, match=r"Each replica must have a record\. Received: 10 records, 12 replicas"):
            tb.from_records(ten, batch_size=1, shard=(rank, 12), **options)


def test_the_first_batch_of_class_sorted_records_is_mixed(tmp_path: Path, engine: EngineName) -> None:
    image = support.photograph(0, 24, 24)
    shards = support.write_shards(tmp_path, [image] * 2000, np.repeat(np.arange(20), 100).tolist(), shards=4)
    dataset = tb.from_tfrecords(shards, recipe=TRAIN, batch_size=64, seed=0, engine=engine)
    first = next(iter(dataset))[1].numpy()
    assert len(np.unique(first)) >= 15  # a permutation's batch of 64 has 19 of the 20 classes on average


def test_a_replica_that_restarts_at_an_epoch_reads_what_it_would_have_read(
    photographs: list[Path], engine: EngineName
) -> None:
    def replica(rank: int) -> tb.ImageDataset:
        options: dict[str, Any] = {"batch_size": 5, "seed": 3, "engine": engine, "shard": (rank, 2)}
        return tb.from_tfrecords(photographs, recipe=TRAIN, **options)

    for rank in range(2):
        whole, restarted = replica(rank), replica(rank)
        epochs = [_labels(whole) for _ in range(3)]
        restarted.set_epoch(2)
        assert _labels(restarted) == epochs[2]
        assert len({tuple(epoch) for epoch in epochs}) == 3


def test_index_files_of_other_tools_are_of_no_account(tmp_path: Path, engine: EngineName) -> None:
    """Empty, stale or of another shard: what is read follows from the shard alone."""
    images = [support.photograph(k, 24, 30) for k in range(9)]
    shards = support.write_shards(tmp_path, images)
    shards[0].with_suffix(".idx").touch()
    (tmp_path / f"{shards[1].name}.idx").write_text("0 10\n10 20\n")
    dataset = tb.from_tfrecords(f"{tmp_path}/*-of-00003", recipe=dp.crop_eval(16), batch_size=4, engine=engine)
    assert _labels(dataset) == list(range(9))


def test_labels_are_vectors_whichever_list_holds_them(tmp_path: Path, engine: EngineName) -> None:
    image = support.photograph(0, 24, 24)
    path = support.write_shard(
        tmp_path / "a.tfrecord", [support.example({"image": image, "label": label}) for label in (3, [4], (5,))]
    )
    dataset = tb.from_tfrecords(path, recipe=dp.crop_eval(16), batch_size=3, engine=engine)
    ((_, labels),) = [(x, y) for x, y in dataset]
    assert (labels.shape, labels.dtype.name, labels.numpy().tolist()) == ((3,), "int64", [3, 4, 5])
