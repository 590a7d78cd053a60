"""DALI on the CPU, run from Python: whose memory is whose, and pipelines that serve many epochs."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
import tf_bridge as tb
from tests import odd_images, support
from tf_bridge import dali_host
from tf_bridge.dali_host import HostEngine

CROP = dp.Recipe((dp.RandomCrop(32),), "uint8")


def engine(photographs: list[Path], **options: Any) -> HostEngine:
    options = {"batch_size": 4, "seed": 0, "engine": "dali", "drop_remainder": False, **options}
    return HostEngine(tb.from_tfrecords(photographs, recipe=CROP, **options)._source, 3)


def arrays(batches: Any) -> list[np.ndarray]:
    return [np.array(images) for images, _ in batches]


def address(tensor: Any) -> int:
    """Of its memory; `numpy()` would copy."""
    return np.asarray(memoryview(tensor)).ctypes.data


def test_batches_keep_their_values_as_long_as_they_are_held(photographs: list[Path]) -> None:
    runs = engine(photographs)
    at_once = arrays(runs.batches(0))
    held = list(runs.batches(0))
    list(runs.batches(1))  # through the same pipeline and the same memory
    del runs
    for (images, _), expected in zip(held, at_once, strict=True):
        np.testing.assert_array_equal(images, expected)


def test_batches_are_not_copied(photographs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    places = list[int]()
    tensor = dali_host._tensor

    def noted(batch: Any) -> Any:
        places.append(np.asarray(batch.as_tensor()).ctypes.data)
        return tensor(batch)

    monkeypatch.setattr(dali_host, "_tensor", noted)
    given = [address(part) for batch in engine(photographs).batches(0) for part in batch]
    assert given == places


def test_memory_that_is_not_aligned_is_copied() -> None:
    class Batch:
        def as_tensor(self) -> np.ndarray:
            return np.arange(65, dtype=np.uint8)[1:]

    tensor = dali_host._tensor(Batch())
    assert tensor.numpy().tolist() == list(range(1, 65))
    assert address(tensor) % 64 == 0


def test_the_same_pipelines_serve_epoch_after_epoch(photographs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    runs, built = engine(photographs), list[Any]()
    pipeline = runs._pipeline

    def noted() -> Any:
        built.append(pipeline())
        return built[-1]

    monkeypatch.setattr(runs, "_pipeline", noted)
    epochs = [arrays(runs.batches(number)) for number in (0, 1, 0)]
    assert len(built) == dali_host.PIPELINES
    assert [len(e) for e in epochs] == [13] * 3
    for first, again in zip(epochs[0], epochs[2], strict=True):
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(("threads", "pipelines"), [(1, 1), (2, 2), (8, 2)])
def test_who_asks_for_one_thread_gets_one_pipeline(
    photographs: list[Path], monkeypatch: pytest.MonkeyPatch, threads: int, pipelines: int
) -> None:
    expected, built = arrays(engine(photographs).batches(0)), list[Any]()
    runs = HostEngine(engine(photographs)._source, threads)
    pipeline = runs._pipeline
    monkeypatch.setattr(runs, "_pipeline", lambda: built.append(pipeline()) or built[-1])  # type: ignore[func-returns-value]
    for images, right in zip(arrays(runs.batches(0)), expected, strict=True):
        np.testing.assert_array_equal(images, right)
    assert len(built) == pipelines


def test_epochs_side_by_side_do_not_mix(photographs: list[Path]) -> None:
    runs = engine(photographs)
    apart = [arrays(runs.batches(number)) for number in (0, 1)]
    together = [list[np.ndarray](), list[np.ndarray]()]
    for batches in zip(runs.batches(0), runs.batches(1), strict=True):
        for epoch, (images, _) in zip(together, batches, strict=True):
            epoch.append(np.array(images))
    for ours, expected in zip(itertools.chain(*together), itertools.chain(*apart), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_one_that_is_dropped_in_the_middle_leaves_the_next_alone(photographs: list[Path]) -> None:
    runs = engine(photographs)
    whole = arrays(runs.batches(0))
    dropped = runs.batches(1)
    next(dropped)
    del dropped
    for ours, expected in zip(arrays(runs.batches(0)), whole, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("batch_size", [1, 50, 64])
def test_epochs_of_one_batch_and_batches_of_one_image(photographs: list[Path], batch_size: int) -> None:
    batches = list(engine(photographs, batch_size=batch_size, shuffle=False).batches(0))
    assert [n for _, labels in batches for n in labels.numpy().tolist()] == list(range(50))


def test_many_batches_that_fail_leave_the_process_alive(tmp_path: Path) -> None:
    """Headers that do not parse ended it, before `pipeline._parsed` read them first."""
    code = f"""
import numpy as np, pathlib
import dali_pipe as dp, tf_bridge as tb
from tf_bridge.dali_host import HostEngine
records = dp.from_files({str(tmp_path / "data*")!r})
recipe = dp.Recipe((dp.CenterCrop(32),), "uint8")
source = tb.from_records(records, recipe=recipe, batch_size=8, engine="tfdata")._source
engine, failed = HostEngine(source, 3), 0
for _ in range(40):
    try:
        list(engine.batches(0))
    except RuntimeError:
        failed += 1
print("failed", failed)
"""
    images = [support.photograph(k, 40, 40) for k in range(24)]
    for place, kind in ((3, "ff00_between_segments"), (12, "truncated_half"), (13, "gif")):
        images[place] = odd_images.IMAGES[kind]
    support.write_shards(tmp_path, images)
    done = support.run_forked(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("failed 40")
