"""The plugin's dataset, which is what a GPU runs; here on the CPU, against what `dali_host` gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import dali_pipe as dp
import tf_bridge as tb
from tf_bridge import dali_engine
from tf_bridge.dali_host import HostEngine

CROP = (dp.RandomCrop(32), dp.RandomFlip())
RECIPES = {
    "uint8": dp.Recipe(CROP, "uint8"),
    "small images, float16": dp.crop_train(64, "float16"),
    "mixed": dp.Recipe((*CROP, dp.Normalize()), "float32", label=dp.OneHot(50), mix=dp.MixUp()),
}


def source(photographs: list[Path], recipe: dp.Recipe = RECIPES["uint8"], **options: Any) -> Any:
    options = {"batch_size": 16, "seed": 0, "engine": "dali", **options}
    return tb.from_tfrecords(photographs, recipe=recipe, **options)._source


def arrays(batches: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x.numpy(), y.numpy()) for x, y in batches]


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_an_epoch_is_the_host_engine_s(photographs: list[Path], recipe: dp.Recipe, drop_remainder: bool) -> None:
    epochs = source(photographs, recipe, drop_remainder=drop_remainder)
    engine, host = dali_engine.DALIEngine(epochs, "cpu", 2), HostEngine(epochs, 2)
    for number in (0, 1):
        ours, expected = arrays(engine.epoch(number)), arrays(host.batches(number))
        assert [len(x) for x, _ in ours] == ([16] * 3 if drop_remainder else [16, 16, 16, 2])
        for got, wanted in zip(ours, expected, strict=True):
            np.testing.assert_array_equal(got[0], wanted[0])
            np.testing.assert_array_equal(got[1], wanted[1])


def test_the_rest_of_an_epoch(photographs: list[Path]) -> None:
    whole = source(photographs)
    engine = dali_engine.DALIEngine(whole.rest(1, 2), "cpu", 2)  # its index files go with it
    (images, labels), *_ = arrays(engine.epoch(1))
    wanted = arrays(HostEngine(whole, 2).batches(1))[2]
    np.testing.assert_array_equal(images, wanted[0])
    np.testing.assert_array_equal(labels, wanted[1])


def test_its_spec_is_the_data_set_s(photographs: list[Path]) -> None:
    ds = tb.from_tfrecords(photographs, recipe=RECIPES["mixed"], batch_size=16, seed=0, engine="dali")
    engine = dali_engine.DALIEngine(ds._source, "cpu", 2)
    assert engine.epoch(0).element_spec == ds.element_spec


def test_the_endless_stream_comes_round_with_new_draws(
    photographs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pipeline for all epochs: its index holds some epochs, its tickets go on."""
    monkeypatch.setattr(dali_engine, "MAX_REPEATED_RUNS", 100)  # two epochs of 50 records
    engine = dali_engine.DALIEngine(source(photographs, repeat=True), "cpu", 2)
    stream = iter(engine.endless(0))
    epochs = [[next(stream) for _ in range(3)] for _ in range(4)]
    orders = [[n for _, batch in e for n in batch.numpy().tolist()] for e in epochs]
    assert orders[0] == orders[2] and orders[1] == orders[3] and orders[0] != orders[1]
    assert not np.array_equal(epochs[0][0][0].numpy(), epochs[2][0][0].numpy())
    once = next(iter(tb.from_tfrecords(photographs, recipe=RECIPES["uint8"], batch_size=16, seed=0, engine="dali")))
    assert np.array_equal(epochs[0][0][0].numpy(), once[0].numpy())


def test_epochs_are_counted_by_what_the_plugin_asks_for(photographs: list[Path]) -> None:
    epochs = source(photographs, batch_size=5)
    engine = dali_engine.DALIEngine(epochs, "cpu", 2)
    engine._device = "gpu"
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    tickets = engine._counted(tf.data.Dataset.range(10), tf.constant(0, tf.int64))
    counted = iter(tickets.with_options(options))
    for _ in range(dali_engine.PREFETCH):
        next(counted)
    assert epochs.counter.value == 0
    next(counted)
    assert epochs.counter.value == 1
