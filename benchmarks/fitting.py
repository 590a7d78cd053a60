"""`model.fit` fed by a pipeline, against the same model fed by one cached batch."""

import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_bridge as tb
from benchmarks import pipelines
from benchmarks.case import Case, SkipError
from benchmarks.share import input_bound

_FIRST = 5  # steps that compile the model and fill the pipeline
_EPOCH = 32  # steps an epoch of the cached batch, and of a data set without end


class Steps(keras.callbacks.Callback):
    """The time of each step after the first few, until there are enough.

    Args:
        count: steps.
    """

    def __init__(self, count: int):
        super().__init__()
        self.seconds = list[float]()
        self._count, self._seen, self._last = count, 0, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the time; the wait between epochs is part of the step behind it."""
        now = time.perf_counter()
        if self._seen >= _FIRST:
            self.seconds.append(now - self._last)
        self._seen, self._last = self._seen + 1, now
        if len(self.seconds) >= self._count:
            self.model.stop_training = True


def fitted(case: Case, *, steps: int, width: int, logs: str | None = None) -> dict[str, Any]:
    """The mean step of a ResNet-18 in `fit`, with the case's pipeline and with one batch of it, cached on the device.

    Args:
        case: what feeds it.
        steps: how many to time.
        width: channels of the model's first stage.
        logs: folder for TensorBoard's profile of ten steps.

    Raises:
        SkipError: the pipeline is no tf.data.Dataset.
    """
    dataset = pipelines.make(case)
    if not isinstance(dataset, tf.data.Dataset):
        raise SkipError("not a tf.data.Dataset")
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        dataset = dataset.take(_EPOCH)
    device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    with tf.device(f"/{device}:0"):
        batch = tuple(tf.identity(part) for part in next(iter(dataset)))
    model = _model(case, width)
    cached = _step(model, tf.data.Dataset.from_tensors(batch).repeat(_EPOCH), steps)
    real = _step(model, dataset, steps, _profiler(case, logs) if logs else None)
    return {
        "simulated": False,
        "device": device.lower(),
        "step_ms": 1000 * real,
        "cached_step_ms": 1000 * cached,
        "input_bound": input_bound(cached, real),
    }


def _model(case: Case, width: int) -> keras.Model:
    classes = max(int(np.max(case.records.labels)) + 1, len(case.records.classes))
    model = tb.resnet18(classes, recipe=case.ours, width=width)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _profiler(case: Case, logs: str) -> keras.callbacks.Callback:
    name = f"{case.name} {case.dtype}".replace("/", "-").replace(" ", "-")
    return keras.callbacks.TensorBoard(Path(logs) / name, profile_batch=(_FIRST, _FIRST + 10))


def _step(model: keras.Model, dataset: Any, steps: int, profiler: keras.callbacks.Callback | None = None) -> float:
    """Mean seconds of a step."""
    timer = Steps(steps)
    model.fit(dataset, epochs=10**6, shuffle=False, verbose=0, callbacks=[timer, *filter(None, [profiler])])
    return statistics.fmean(timer.seconds)
