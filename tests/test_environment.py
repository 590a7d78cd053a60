"""Odd surroundings: names, full disks, folders nobody may write to."""

import errno
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
import tf_bridge as tb
from dali_pipe import cache
from tests import support
from tf_bridge.choice import EngineName

RECIPE = dp.crop_train(32, "uint8")


def labels(ds: Any) -> list[int]:
    return sorted(int(n) for _, batch in ds for n in batch)


@pytest.mark.parametrize("name", ["with a space", "Bilder größer ü", "数据", "a'b\"c", "100%d {x} [1]", "tab\there"])
def test_folder_names(tmp_path: Path, engine: EngineName, name: str) -> None:
    support.write_shards(tmp_path / name, [support.photograph(k, 40, 44) for k in range(8)], shards=2)
    shards = sorted((tmp_path / name).iterdir())
    ds = tb.from_tfrecords(shards, recipe=RECIPE, batch_size=4, engine=engine)
    assert labels(ds) == list(range(8))


def test_a_symbolic_link_to_the_data(tmp_path: Path, engine: EngineName) -> None:
    support.write_shards(tmp_path / "real", [support.photograph(k, 40, 44) for k in range(8)])
    (tmp_path / "link").symlink_to(tmp_path / "real")
    ds = tb.from_tfrecords(f"{tmp_path}/link/*", recipe=RECIPE, batch_size=4, engine=engine)
    assert labels(ds) == list(range(8))


def test_relative_paths_survive_a_change_of_folder(
    tmp_path: Path, engine: EngineName, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.write_shards(tmp_path / "data", [support.photograph(k, 40, 44) for k in range(8)])
    monkeypatch.chdir(tmp_path)
    ds = tb.from_tfrecords("data/*", recipe=RECIPE, batch_size=4, engine=engine)
    monkeypatch.chdir("/")
    assert labels(ds) == list(range(8))


def test_a_full_disk_under_the_cache_only_costs_the_cache(
    tmp_path: Path, photographs: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(np, "savez", full)
    with caplog.at_level(logging.WARNING):
        ds = tb.from_tfrecords(photographs, recipe=RECIPE, batch_size=16)
    assert "No space left on device" in caplog.text and "DALI_TF_CACHE" in caplog.text
    assert len(labels(ds)) == 48
    assert [p for p in cache.cache_folder().rglob("*") if p.is_file()] == []  # no half-written entry stays


def test_a_full_disk_under_the_index_files_is_an_exception(
    photographs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written for a GPU alone, so it is its engine that meets it."""

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm")

    from tf_bridge.dali_engine import DALIEngine

    ds = tb.from_tfrecords(photographs, recipe=RECIPE, batch_size=16, engine="dali")
    engine = DALIEngine(ds._source, "cpu", 2)
    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match=r"No space left on device.*/dev/shm"):
        engine.epoch(0)
    monkeypatch.undo()
    assert len(labels(engine.epoch(0))) == 48


def test_nothing_left_after_filtering(photographs: list[Path], engine: EngineName) -> None:
    records = dp.from_files([str(p) for p in photographs])
    with pytest.raises(ValueError, match="There is no record to read: the split, slice or shard is empty"):
        tb.from_records(records.take(0), recipe=RECIPE, batch_size=4, engine=engine)


def test_more_replicas_than_records(photographs: list[Path], engine: EngineName) -> None:
    records = dp.from_files([str(p) for p in photographs]).take(3)
    with pytest.raises(ValueError, match=r"Each replica must have a record. Received: 3 records, 4 replicas"):
        tb.from_records(records, recipe=RECIPE, batch_size=1, engine=engine, shard=(3, 4))
