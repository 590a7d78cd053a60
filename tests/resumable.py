"""A small training run that writes down which records it saw, and may be killed at any moment."""

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import dali_pipe as dp
import tf_bridge as tb
from tf_bridge.choice import EngineName

RECIPE = dp.Recipe((dp.RandomCrop(16), dp.RandomFlip()), "uint8")
RECORDS, BATCH = 50, 8

History = dict[int, list[list[int]]]


def dataset(files: Sequence[Path], engine: EngineName, **options: Any) -> tb.ImageDataset:
    """Labels are ids; six full batches and one of two."""
    options = {"recipe": RECIPE, "batch_size": BATCH, "seed": 3, "drop_remainder": False, **options}
    return tb.from_tfrecords(list(files), engine=engine, **options)


def layers(width: int = 8) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """A classifier with everything that has a state: batch normalisation, dropout."""
    inputs = keras.Input((16, 16, 3), dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.Dense(width, activation="relu")(keras.layers.Flatten()(x))
    x = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(x))
    return inputs, keras.layers.Dense(RECORDS)(x)


def compiled(model: keras.Model, optimizer: Any = "adam", **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


class Logged(keras.Model):
    """Writes the labels of each step to a file, past all buffers of the process."""

    log: int

    def train_step(self, data: Any) -> Any:
        write = tf.py_function(lambda y: self.write("batch", *y.numpy().tolist()), [data[1]], [])
        with tf.control_dependencies([write]):
            return super().train_step(data)

    def write(self, *words: Any) -> None:
        os.write(self.log, (" ".join(map(str, words)) + "\n").encode())


def train(
    files: Sequence[Path],
    folder: Path,
    engine: EngineName,
    epochs: int,
    save_every: int,
    kill: int | None = None,
    seed: int = 0,
    width: int = 8,
) -> None:
    """Go on with the run in `folder`; die at a random moment of or after the `kill`-th step from here."""
    keras.utils.set_random_seed(seed)  # another initial model each time: what is restored is all that counts
    model = Logged(*layers(width))
    model.log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    compiled(model)
    state = tb.TrainingState(folder, dataset(files, engine), save_every)
    model.write("from", *state.restore(model))
    begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: model.write("epoch", epoch))
    if kill is not None:
        threading.Thread(target=_die, args=(folder / "log", kill, random.Random(seed)), daemon=True).start()
    tb.fit_resumable(model, state, epochs=epochs, callbacks=[begin], verbose=0)
    np.savez(folder / "final.npz", *[np.asarray(v) for v in model.weights])
    model.write("iterations", int(model.optimizer.iterations.numpy()))


def _die(log: Path, step: int, rng: random.Random) -> None:
    before = log.read_text().count("batch")
    while log.read_text().count("batch") < before + step:
        time.sleep(0.0005)
    time.sleep(rng.random() * 0.02)  # a step and its saving take about as long
    os.kill(os.getpid(), signal.SIGKILL)


def replay(log: Path) -> History:
    """The batches of each epoch that made the model: what came after a state that was gone back to is taken out."""
    seen: History = {}
    epoch = 0
    for line in log.read_text().splitlines():
        word, *numbers = line.split()
        values = [int(n) for n in numbers]
        if word == "from":
            first, step = values
            seen = {e: batches for e, batches in seen.items() if e <= first}
            seen[first] = seen.get(first, [])[:step]
            assert len(seen[first]) == step, "a state of a step that was never made"
        elif word == "epoch":
            (epoch,) = values
            seen.setdefault(epoch, [])
        elif word == "batch":
            seen[epoch].append(values)
    return {epoch: batches for epoch, batches in seen.items() if batches}
