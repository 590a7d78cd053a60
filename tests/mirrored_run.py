"""What MirroredStrategy does with our data sets, on logical CPU devices, in a process of its own.

    python -m tests.mirrored_run ENGINE FOLDER CHECK...

The devices must be there before TensorFlow starts, and starting it takes longest, so that checks share one process.
"""

import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

import dali_pipe as dp
import tf_bridge as tb

RANDOM = dp.Recipe((dp.RandomCrop(16), dp.RandomFlip()), "uint8")
FIXED = dp.Recipe((dp.CenterCrop(16),), "uint8")
RECORDS, BATCH = 50, 8

Batch = tuple[NDArray[Any], NDArray[Any]]


def strategy_of(replicas: int) -> tf.distribute.MirroredStrategy:
    devices = [f"/cpu:{k}" for k in range(replicas)]
    # Collectives of strategies that share devices get in each other's way.
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def batches(dataset: Any) -> Iterator[Batch]:
    """Of all replicas together, sorted by label, which is the record's number."""
    for images, labels in dataset:
        parts = [getattr(part, "values", (part,)) for part in (images, labels)]
        x, y = (np.concatenate([tensor.numpy() for tensor in part]) for part in parts)
        yield x[np.argsort(y)], np.sort(y)


class Checks:
    """Each method is a check."""

    def __init__(self, engine: Any, folder: Path):
        self.engine, self.files = engine, [str(path) for path in sorted(folder.iterdir())]

    def make(self, recipe: dp.Recipe, **options: Any) -> tb.ImageDataset:
        options = {"recipe": recipe, "batch_size": BATCH, "seed": 3, "engine": self.engine, **options}
        return tb.from_tfrecords(self.files, **options)

    def distribute(self, strategy: Any, recipe: dp.Recipe, **options: Any) -> tb.DistributedImages:
        return tb.distribute(strategy, lambda shard: self.make(recipe, shard=shard, **options))

    def the_same_images(self) -> None:
        """Bit for bit, on one replica, two and four."""
        for replicas, options in ((1, {}), (2, {"drop_remainder": False}), (4, {"seed": None})):
            ds = self.distribute(strategy_of(replicas), RANDOM, **options)
            one = self.make(RANDOM, **{**options, "seed": ds.seed})
            assert len(ds) == len(one) == int(ds.cardinality())
            for epoch in range(2):
                assert ds.epoch == one.epoch == epoch
                same(batches(ds), batches(one))
            same(batches(ds.rest(1, 2)), batches(one.rest(1, 2)))

    def each_record_once_however_many(self) -> None:
        """For every number of records near whole batches; nothing hangs where they do not come out even."""
        strategy = strategy_of(4)
        with pytest.raises(ValueError, match=r"same data set for every shard. Received: seed=0 on the cpu, "):
            tb.distribute(strategy, lambda shard: self.make(FIXED, seed=shard[0], shard=shard))
        with pytest.raises(ValueError, match=r"in each training step. .* last batch of 2 records for 4 replicas"):
            self.distribute(strategy, RANDOM, drop_remainder=False)
        for count in (4, 5, 9, 33):
            ds = self._of(strategy, count)
            seen = [y.tolist() for _, y in batches(ds)]
            assert [label for batch in seen for label in batch] == list(range(count)), seen
            assert len(seen) == len(ds) and ds.batch_size <= BATCH

    def _of(self, strategy: Any, count: int, batch_size: int = BATCH) -> tb.DistributedImages:
        """The first records, for evaluation."""
        records = self.make(FIXED).records.take(count)
        return tb.distribute(
            strategy,
            lambda shard: tb.from_records(
                records, recipe=FIXED, batch_size=batch_size, engine=self.engine, shard=shard
            ),
        )

    def trains_as_one_device_does(self) -> None:
        strategy = strategy_of(2)
        one, data = compiled(), self.make(RANDOM)
        expected = one.fit(data, epochs=3, shuffle=False, verbose=0)
        with strategy.scope():
            model = compiled()
        train, held_out = self.distribute(strategy, RANDOM), self.distribute(strategy, FIXED)
        history = model.fit(train, epochs=3, validation_data=held_out, shuffle=False, verbose=0).history
        np.testing.assert_allclose(history["loss"], expected.history["loss"], rtol=1e-5)
        apart = max(np.abs(a - b).max() for a, b in zip(model.get_weights(), one.get_weights(), strict=True))
        print(f"weights after 3 epochs on 2 replicas and on 1: at most {apart:.1e} apart")
        assert apart < 1e-6 and train.epoch == 3
        self._evaluates_and_predicts(model, held_out, history)

    def _evaluates_and_predicts(self, model: Any, held_out: tb.DistributedImages, history: Any) -> None:
        images, labels = next(iter(self.make(FIXED, batch_size=RECORDS)))
        logits = model(images).numpy()
        loss, accuracy = in_numpy(logits, labels.numpy())
        told = model.evaluate(held_out, verbose=0, return_dict=True)
        print(f"evaluate {told['loss']:.7f}, numpy {loss:.7f}")
        for logs in (told, {"loss": history["val_loss"][-1], "accuracy": history["val_accuracy"][-1]}):
            np.testing.assert_allclose([logs["loss"], logs["accuracy"]], [loss, accuracy], rtol=1e-6)
        np.testing.assert_allclose(held_out.in_order(model.predict(held_out, verbose=0)), logits, rtol=1e-5, atol=1e-6)

    def an_endless_stream(self) -> None:
        ds = self.distribute(strategy_of(2), RANDOM, repeat=True)
        one = batches(self.make(RANDOM, repeat=True))
        assert int(ds.cardinality()) == tf.data.INFINITE_CARDINALITY and len(ds) == RECORDS // BATCH
        steps = 2 * len(ds) + 1
        same(itertools.islice(batches(ds), steps), itertools.islice(one, steps))

    def iterators_are_left_in_the_middle(self) -> None:
        """And one is still alive when the interpreter goes."""
        ds = self.distribute(strategy_of(2), RANDOM)
        for _ in range(3):
            self.left = iter(ds)
            next(self.left)

    def goes_on_where_it_was_stopped(self) -> None:
        one = compiled()
        one.fit(self.make(RANDOM), epochs=2, shuffle=False, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            for stop in (9, None):
                strategy = strategy_of(2)
                with strategy.scope():
                    model = compiled()
                state = tb.TrainingState(folder, self.distribute(strategy, RANDOM), save_every=2)
                with contextlib.suppress(Stop):
                    tb.fit_resumable(model, state, epochs=2, callbacks=[StopAfter(stop)], verbose=0)
        assert int(model.optimizer.iterations.numpy()) == 2 * (RECORDS // BATCH)
        for ours, theirs in zip(model.get_weights(), one.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)

    def tf_keras_trains_as_one_device_does(self) -> None:
        import tf_keras

        one, data = compiled(library=tf_keras), self.make(RANDOM)
        expected = one.fit(data, epochs=2, verbose=0).history
        strategy = strategy_of(2)
        with strategy.scope():
            model = compiled(library=tf_keras)
        train = self.distribute(strategy, RANDOM, repeat=True)
        held_out = self.distribute(strategy, FIXED)
        history = model.fit(train, epochs=2, steps_per_epoch=len(train), verbose=0).history
        np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
        images, labels = next(iter(self.make(FIXED, batch_size=RECORDS)))
        told = model.evaluate(held_out, steps=len(held_out), verbose=0)
        np.testing.assert_allclose(told, in_numpy(model(images).numpy(), labels.numpy()), rtol=1e-6)
        rows = held_out.in_order(model.predict(held_out, steps=len(held_out), verbose=0))
        np.testing.assert_allclose(rows, model(images), rtol=1e-5, atol=1e-6)

    def batch_norm_stays_finite(self) -> None:
        """With a last batch that leaves no record for two of four replicas, if nothing were done about it."""
        strategy = strategy_of(4)
        ds = self._of(strategy, 34, batch_size=16)
        assert ds.batch_size == 12 and len(ds) == 3
        with strategy.scope():
            model = compiled(keras.layers.BatchNormalization())
        model.fit(ds, epochs=1, shuffle=False, verbose=0)
        assert all(np.isfinite(w).all() for w in model.get_weights())


class Stop(Exception):
    """Takes the place of a crash."""


class StopAfter(keras.callbacks.Callback):
    """Raises after so many steps."""

    def __init__(self, steps: int | None):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.left is not None:
            self.left -= 1
            if not self.left:
                raise Stop


def same(ours: Iterator[Batch], theirs: Iterator[Batch]) -> None:
    for (x, y), (images, labels) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(x, images)
        np.testing.assert_array_equal(y, labels)


CHECKS = [
    "the_same_images",
    "each_record_once_however_many",
    "trains_as_one_device_does",
    "an_endless_stream",
    "goes_on_where_it_was_stopped",
    "batch_norm_stays_finite",
    "tf_keras_trains_as_one_device_does",
    "iterators_are_left_in_the_middle",
]


def compiled(*layers: Any, library: Any = keras) -> Any:
    keras = library
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16, 16, 3), dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    for layer in (keras.layers.Dense(8, "relu"), *layers, keras.layers.Dense(RECORDS)):
        x = layer(x)
    model = keras.Model(inputs, x)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


def in_numpy(logits: NDArray[Any], labels: NDArray[Any]) -> tuple[float, float]:
    """Mean loss and accuracy."""
    logits = logits.astype(np.float64)
    logs = logits - logits.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean(), float((logits.argmax(1) == labels).mean())


def main(engine: str, folder: str, *names: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    checks = Checks(engine, Path(folder))
    for name in names:
        getattr(checks, name)()
        print("passed:", name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
