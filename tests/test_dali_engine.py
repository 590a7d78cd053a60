"""The plugin's dataset, which is what a GPU runs; here on the CPU, against what `dali_host` gives."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import dali_pipe as dp
import tf_bridge as tb
from dali_pipe import pipeline
from tests import support
from tf_bridge import dali_engine, dataset
from tf_bridge.choice import Choice
from tf_bridge.dali_host import HostEngine
from tf_bridge.source import Source

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


def test_its_spec_is_the_data_set_s(photographs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ds = tb.from_tfrecords(photographs, recipe=RECIPES["mixed"], batch_size=16, seed=0, engine="dali")
    engine = dali_engine.DALIEngine(ds._source, "cpu", 2)
    made: list[Any] = []
    build = pipeline.build

    def kept(*args: Any, **options: Any) -> Any:
        made.append(build(*args, **options))
        return made[-1]

    monkeypatch.setattr(pipeline, "build", kept)
    spec = engine.epoch(0).element_spec
    assert spec == ds.element_spec
    assert len(spec) == len(made[0].output_dtype())  # of fewer, the process dies


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


def few_segments(epochs: Source, most: int) -> Source:
    return replace(epochs, plan=replace(epochs.plan, max_segments=most))


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_beyond_the_segments_an_exact_order_is_fed(
    photographs: list[Path], drop_remainder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an index file, of which there would be one a record."""
    monkeypatch.setattr("dali_pipe.index_files.IndexFiles.write", None)
    epochs = source(photographs, RECIPES["mixed"], shuffle="exact", drop_remainder=drop_remainder)
    engine = dali_engine.DALIEngine(few_segments(epochs, 49), "cpu", 2)
    for number in (0, 1):
        ours, expected = arrays(engine.epoch(number)), arrays(HostEngine(epochs, 2).batches(number))
        assert [len(x) for x, _ in ours] == ([16] * 3 if drop_remainder else [16, 16, 16, 2])
        for got, wanted in zip(ours, expected, strict=True):
            np.testing.assert_array_equal(got[0], wanted[0])
            np.testing.assert_array_equal(got[1], wanted[1])


def test_one_large_image_widens_a_batch_that_is_fed(
    photographs: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    epochs = few_segments(source(photographs, shuffle="exact"), 49)
    widest = 16 * int(epochs.plan.records.table["image_length"].max())
    for room, told in ((widest, False), (widest - 1, True)):
        monkeypatch.setattr(dali_engine, "_ROOM", room)
        dali_engine.DALIEngine(epochs, "cpu", 2)
        assert ("room of the largest" in caplog.text) == told


def test_the_rest_of_an_epoch_that_is_fed(photographs: list[Path]) -> None:
    whole = few_segments(source(photographs, shuffle="exact", drop_remainder=False), 49)
    ours = arrays(dali_engine.DALIEngine(whole.rest(1, 2), "cpu", 2).epoch(1))
    expected = arrays(HostEngine(whole, 2).batches(1))[2:]
    for got, wanted in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(got[0], wanted[0])
        np.testing.assert_array_equal(got[1], wanted[1])


def test_an_endless_stream_that_is_fed_never_comes_round(photographs: list[Path]) -> None:
    epochs = few_segments(source(photographs, shuffle="exact", repeat=True), 49)
    stream, host = iter(dali_engine.DALIEngine(epochs, "cpu", 2).endless(1)), HostEngine(epochs, 2)
    for number in (1, 2, 3):
        for images, labels in host.batches(number):
            got = next(stream)
            np.testing.assert_array_equal(got[0], images)
            np.testing.assert_array_equal(got[1], labels)


def test_an_epoch_counts_from_its_second_batch_on(photographs: list[Path]) -> None:
    """The plugin works ahead; what it asks for says what it has handed out."""
    epochs = source(photographs, batch_size=5)
    batches = iter(dali_engine.DALIEngine(epochs, "cpu", 2).epoch(0))
    next(batches)
    assert epochs.counter.value == 0
    next(batches)
    assert epochs.counter.value == 1


Make = Callable[..., tb.ImageDataset]


def labels(batches: Any) -> list[list[int]]:
    return [y.numpy().tolist() for _, y in batches]


def in_a_row(batches: Any) -> list[int]:
    return [n for batch in labels(batches) for n in batch]


def options_of(name: str) -> tf.data.Options:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.dataset_name = name
    return options


FOLLOWING: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda ds: ds,
    "prefetch": lambda ds: ds.prefetch(2),
    "both": lambda ds: ds.with_options(options_of("first")).prefetch(1).with_options(options_of("last")),
}


class TestADataSetOnTheGPU:
    """All of `ImageDataset` that a GPU uses; the plugin alone is told to run on the CPU."""

    @pytest.fixture
    def make(self, photographs: list[Path], monkeypatch: pytest.MonkeyPatch) -> Make:
        def engine(source: Source, num_threads: int, gpu: int) -> dali_engine.DALIEngine:
            return dali_engine.DALIEngine(source, "cpu", num_threads)

        monkeypatch.setattr(dataset, "_gpu_engine", engine)
        monkeypatch.setattr(dataset, "choose", lambda *_: Choice("dali", "gpu", "of this test"))

        def make(recipe: dp.Recipe = RECIPES["uint8"], files: Any = photographs, **options: Any) -> tb.ImageDataset:
            return tb.from_tfrecords(files, recipe=recipe, **{"batch_size": 16, "seed": 0, **options})

        return make

    @pytest.mark.parametrize("follow", FOLLOWING.values(), ids=FOLLOWING)
    def test_each_iteration_is_the_next_epoch(self, make: Make, follow: Callable[[Any], Any]) -> None:
        ds = make(drop_remainder=False)
        following, host = follow(ds), HostEngine(ds._source, 2)
        assert int(following.cardinality()) == len(following) == 4
        assert following.element_spec == ds.element_spec
        expected = [arrays(host.batches(number)) for number in range(3)]
        for number, epoch in enumerate(expected):
            assert ds.epoch == number
            got = arrays(following)
            assert [len(y) for _, y in got] == [16, 16, 16, 2]
            for ours, theirs in zip(got, epoch, strict=True):
                np.testing.assert_array_equal(ours[0], theirs[0])
                np.testing.assert_array_equal(ours[1], theirs[1])
        assert len({tuple(np.concatenate([y for _, y in epoch])) for epoch in expected}) == 3

    def test_a_peek_uses_no_epoch_up(self, make: Make) -> None:
        ds = make(batch_size=5)
        next(iter(ds))
        assert ds.epoch == 0
        assert ds.prefetch(1).with_options(options_of("mine")).options().dataset_name == "mine"

    @pytest.mark.parametrize("follow", FOLLOWING.values(), ids=FOLLOWING)
    def test_a_shard_that_has_gone_between_epochs(
        self, make: Make, tmp_path: Path, follow: Callable[[Any], Any]
    ) -> None:
        shards = support.write_shards(tmp_path, [support.photograph(k, 40, 50) for k in range(8)], shards=2)
        following = follow(make(files=shards, batch_size=4))
        assert len(list(following)) == 2
        shards[1].unlink()
        with pytest.raises(FileNotFoundError, match=str(shards[1])):
            iter(following)

    @pytest.mark.parametrize("follow", FOLLOWING.values(), ids=FOLLOWING)
    def test_an_endless_stream(self, make: Make, follow: Callable[[Any], Any]) -> None:
        ds = make(repeat=True, drop_remainder=False)
        following = follow(ds)
        assert int(following.cardinality()) == tf.data.INFINITE_CARDINALITY
        stream = iter(following)
        got = [next(stream)[1].numpy().tolist() for _ in range(12)]
        once = make(drop_remainder=False)
        assert got == [batch for _ in range(3) for batch in labels(once)]

    def test_views_and_the_rest_of_an_epoch(self, make: Make) -> None:
        ds = make(dp.crop_eval(32, "uint8"))
        assert in_a_row(ds) == list(range(50))
        view = tb.from_records(ds.records.exclude([3, 20]), recipe=ds.recipe, batch_size=16)
        assert in_a_row(view) == [n for n in range(50) if n not in (3, 20)]
        train = make(drop_remainder=False)
        rest = train.rest(1, 2)
        train.set_epoch(1)
        assert labels(rest) == labels(rest) == labels(train)[2:]

    @pytest.mark.parametrize("follow", FOLLOWING.values(), ids=FOLLOWING)
    def test_in_keras(self, make: Make, follow: Callable[[Any], Any]) -> None:
        model = tiny_model(50)
        train, validation = make(), make(dp.crop_eval(32, "uint8"))
        model.fit(follow(train), validation_data=follow(validation), epochs=2, shuffle=False, verbose=0)
        assert model.optimizer.iterations.numpy() == 6 and train.epoch == 2
        loss, accuracy = model.evaluate(follow(validation), verbose=0)
        images, numbers = (np.concatenate(part) for part in zip(*arrays(validation), strict=True))
        assert len(numbers) == 50
        logits = np.asarray(model(images))
        expected = keras.losses.sparse_categorical_crossentropy(numbers, logits, from_logits=True)
        assert loss == pytest.approx(np.mean(expected), rel=1e-5)
        assert accuracy == pytest.approx((logits.argmax(1) == numbers).mean(), abs=1e-6)


def tiny_model(classes: int) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(classes)]
    model = keras.Sequential([keras.Input((32, 32, 3), dtype="uint8"), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


@pytest.mark.gpu
@pytest.mark.parametrize("follow", FOLLOWING.values(), ids=FOLLOWING)
def test_on_a_gpu(photographs: list[Path], follow: Callable[[Any], Any]) -> None:
    ds = tb.from_tfrecords(
        photographs, recipe=RECIPES["uint8"], batch_size=16, seed=0, drop_remainder=False, device="gpu"
    )
    following, orders = follow(ds), []
    for _ in range(3):
        batches = list(following)
        assert [len(y) for _, y in batches] == [16, 16, 16, 2]
        assert all(part.device.endswith("GPU:0") for batch in batches for part in batch)
        orders.append([n for _, y in batches for n in y.numpy().tolist()])
    assert orders == [ds._source.order(number).tolist() for number in range(3)]  # labels are places in these files
    ds.set_epoch(0)
    tiny_model(50).fit(following, epochs=2, shuffle=False, verbose=0)
    assert ds.epoch == 2
