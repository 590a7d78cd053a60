"""`model.fit` fed by a pipeline, against the same model fed one batch again and again."""

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
from tf_bridge.profiling import STEPS, StepProfile

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
    """The mean step of a ResNet-18 in `fit`, with the case's pipeline and with one batch of it that is always ready.

    Args:
        case: what feeds it.
        steps: how many to time.
        width: channels of the model's first stage.
        logs: folder for a TensorBoard profile, of a `fit` of its own that is not timed.

    Raises:
        SkipError: the pipeline is no tf.data.Dataset.
    """
    dataset = pipelines.make(case)
    if not isinstance(dataset, tf.data.Dataset):
        raise SkipError("not a tf.data.Dataset")
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        dataset = dataset.take(_EPOCH)
    model = _model(case, width)
    cached = _step(model, ready(dataset, _EPOCH), steps)
    real = _step(model, dataset, steps)
    if logs is not None:
        _step(model, dataset, STEPS, StepProfile(Path(logs) / _folder(case), epoch=0))
    return {
        "simulated": False,
        "device": _device().lower(),
        "step_ms": 1000 * real,
        "cached_step_ms": 1000 * cached,
        "input_bound": input_bound(cached, real),
    }


def ready(dataset: Any, steps: int | None = None) -> Any:
    """The data set's first batch, `steps` times or for ever.

    TensorFlow keeps it in the host's memory; on a GPU each step's copy is made while the steps before it run, so that
    the model waits for none. Not yet run on a GPU.
    """
    batch = tf.data.Dataset.from_tensors(next(iter(dataset))).repeat(steps)
    return batch.apply(tf.data.experimental.prefetch_to_device(f"/{_device()}:0"))


def _device() -> str:
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"


def _model(case: Case, width: int) -> keras.Model:
    classes = max(int(np.max(case.records.labels)) + 1, len(case.records.classes))
    model = tb.resnet18(classes, recipe=case.ours, width=width)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _folder(case: Case) -> str:
    return f"{case.recipe} {case.dtype} {case.name}".replace("/", "-").replace(" ", "-")


def _step(model: keras.Model, dataset: Any, steps: int, profiler: keras.callbacks.Callback | None = None) -> float:
    """Mean seconds of a step."""
    timer = Steps(steps)
    model.fit(dataset, epochs=10**6, shuffle=False, verbose=0, callbacks=[timer, *filter(None, [profiler])])
    return statistics.fmean(timer.seconds)
