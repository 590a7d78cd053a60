"""One of several workers of a small training run, on this machine; what it does and sees goes to files in a folder."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import dali_pipe as dp
import tf_bridge as tb
from tests.mirrored_run import in_numpy
from tf_bridge import state_file

RANDOM = dp.Recipe((dp.RandomCrop(16), dp.RandomFlip()), "uint8")
FIXED = dp.Recipe((dp.CenterCrop(16),), "uint8")
RECORDS, SHARE, EPOCHS = 50, 4, 2


def layers(keras: Any) -> Any:
    """A model of Keras 3 or tf_keras, with batch normalisation."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16, 16, 3), dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.Dense(8, "relu")(x)
    return inputs, keras.layers.Dense(RECORDS)(x)


def compiled(keras: Any, model: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


class Worker:
    """Each method is a run; it returns what the test is to know."""

    def __init__(self, rank: int, workers: int, files: Sequence[str], folder: str, engine: Any, kill: int | None):
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self.files, self.engine, self.folder, self.kill = list(files), engine, Path(folder), kill
        self.batch, self.log = SHARE * workers, self.folder / f"seen-{rank}"

    def distribute(self, recipe: dp.Recipe, **options: Any) -> tb.DistributedImages:
        options = {"recipe": recipe, "batch_size": self.batch, "seed": 3, "engine": self.engine, **options}
        return tb.distribute(self.strategy, lambda shard: tb.from_tfrecords(self.files, shard=shard, **options))

    def keras_3(self) -> dict[str, Any]:
        held_out = self.distribute(FIXED)
        model, history = self._trained_by_keras_3(validation_data=held_out)
        return {**self._measured(model, held_out), "history": history}

    def keras_3_only_trains(self) -> dict[str, Any]:
        model, history = self._trained_by_keras_3()
        return {**_weights(model), "history": history}

    def _trained_by_keras_3(self, **options: Any) -> tuple[Any, Any]:
        import keras

        worker, write = self, state_file.write

        def slow(*args: Any, **options: Any) -> None:
            time.sleep(0.3)  # as for a large model; nobody may go on from what was there before
            write(*args, **options)

        state_file.write = slow

        class Logged(keras.Model):
            """Writes down the labels of each step, and dies in the middle of one if it is to."""

            def train_step(self, data: Any) -> Any:
                write = tf.py_function(lambda y: worker.write(y.numpy().tolist()), [data[1]], [])
                with tf.control_dependencies([write]):
                    return super().train_step(data)

        with self.strategy.scope():
            model = compiled(keras, tb.across_workers(Logged(*layers(keras))))
        state = tb.TrainingState(self.folder / "state", self.distribute(RANDOM), save_every=2)
        self.write({"from": state.restore(model)})
        begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: self.write({"epoch": epoch}))
        tb.fit_resumable(model, state, epochs=EPOCHS, callbacks=[begin], verbose=0, **options)
        return model, state.history

    def unprepared(self) -> dict[str, Any]:
        import keras

        with self.strategy.scope():
            model = compiled(keras, keras.Model(*layers(keras)))
        try:
            model.fit(self.distribute(RANDOM), shuffle=False, verbose=0)
        except TypeError as error:
            return {"error": str(error)}
        return {}

    def other_data(self) -> dict[str, Any]:
        """Each worker with a seed of its own."""
        try:
            self.distribute(RANDOM, seed=os.getpid())
        except ValueError as error:
            return {"error": str(error)}
        return {}

    def tf_keras(self) -> dict[str, Any]:
        import tf_keras

        with self.strategy.scope():
            model = compiled(tf_keras, tf_keras.Model(*layers(tf_keras)))
        train, held_out = self.distribute(RANDOM, repeat=True), self.distribute(FIXED)
        history = model.fit(train, epochs=EPOCHS, steps_per_epoch=len(train), verbose=0).history
        assert train.epoch == EPOCHS, train.epoch
        return {**self._measured(model, held_out, steps=len(held_out)), "history": history}

    def own_loop(self) -> dict[str, Any]:
        """A loop of one's own over a Keras 3 model; the data has a fresh seed, which the workers agree on."""
        import keras

        with self.strategy.scope():
            model, optimizer = keras.Model(*layers(keras)), keras.optimizers.SGD(0.05, momentum=0.9)
            optimizer.build(model.trainable_variables)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

        def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = loss(labels, model(images, training=True)) / self.batch
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return value

        @tf.function
        def global_step(batch: Any) -> tf.Tensor:
            return self.strategy.reduce("SUM", self.strategy.run(step, args=batch), axis=None)

        train = self.distribute(RANDOM, seed=None)
        losses = [[float(global_step(batch)) for batch in train] for _ in range(EPOCHS)]
        seen = self._uneven()
        return {"seed": train.seed, "history": {"loss": [np.mean(e) for e in losses]}, "seen": seen, **_weights(model)}

    def _uneven(self) -> list[list[int]]:
        """Five records, one a replica and step: in the third step the last of two workers has none."""
        records = tb.from_tfrecords(self.files, recipe=FIXED, batch_size=1, engine=self.engine).records.take(5)
        ds = tb.distribute(
            self.strategy,
            lambda shard: tb.from_records(records, recipe=FIXED, batch_size=2, engine=self.engine, shard=shard),
        )
        assert len(ds) == int(ds.cardinality()) == 3
        return [self.strategy.experimental_local_results(y)[0].numpy().tolist() for _, y in ds]

    def write(self, what: Any) -> None:
        """A line, past all buffers of the process."""
        with open(self.log, "a") as file:
            file.write(json.dumps(what) + "\n")
        if self.kill is not None and isinstance(what, list):
            self.kill -= 1
            if self.kill == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def _measured(self, model: Any, held_out: tb.DistributedImages, **steps: int) -> dict[str, Any]:
        """What evaluate and predict say, and what numpy does."""
        told = model.evaluate(held_out, verbose=0, return_dict=True, **steps)
        whole = tb.from_tfrecords(self.files, recipe=FIXED, batch_size=RECORDS, engine=self.engine)
        images, labels = next(iter(whole))
        logits = model(images).numpy()
        rows = held_out.in_order(model.predict(held_out, verbose=0, **steps))
        return {
            "evaluate": [told["loss"], told["accuracy"]],
            "numpy": in_numpy(logits, labels.numpy()),
            "predict": float(np.abs(rows - logits).max()),
            **_weights(model),
        }


def _weights(model: Any) -> dict[str, Any]:
    return {"weights": [np.asarray(w).tolist() for w in model.get_weights()]}


def main(
    name: str,
    rank: int,
    ports: Sequence[int],
    files: Sequence[str],
    folder: str,
    engine: str = "tfdata",
    kill: int | None = None,
) -> None:
    """Run, and leave the result, or what went wrong on stderr and exit code 1."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    try:
        result = getattr(Worker(rank, len(ports), files, folder, engine, kill), name)()
        Path(folder, f"result-{rank}").write_text(json.dumps(result))
        # Its part of the last exchange may still be on its way to the others.
        others, end = [Path(folder, f"result-{other}") for other in range(len(ports))], time.monotonic() + 20
        while not all(map(Path.exists, others)) and time.monotonic() < end:
            time.sleep(0.02)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
