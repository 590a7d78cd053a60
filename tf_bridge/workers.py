"""Keras 3's `fit` under MultiWorkerMirroredStrategy.

Keras 3.15 fails there with any data, in two places: before it builds the metrics it averages a batch over the workers,
as a tuple, which this strategy does not take; and it averages a step's logs along their first axis, where they have
none. A model can be given the batch of one replica, and an axis.
"""

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

_prepared: "weakref.WeakSet[keras.Model]" = weakref.WeakSet()

Step = Callable[[Any], dict[str, tf.Tensor]]


def across_workers(model: keras.Model) -> keras.Model:
    """The same model; `fit`, `evaluate` and `predict` work now under a MultiWorkerMirroredStrategy too.

        with strategy.scope():
            model = tb.across_workers(keras.Model(inputs, outputs))
            model.compile(...)

    Under any other strategy it changes nothing. Models of tf_keras do not need it.

    Args:
        model: of Keras 3, made in the strategy's scope.
    """
    strategy = model.distribute_strategy
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or model in _prepared:
        return model

    def build(iterator: Iterable[Any] | None = None, data_batch: Any = None) -> None:
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], next(batches))
        with strategy.scope():
            model._symbolic_build(data_batch=data_batch)

    model._maybe_symbolic_build = build
    model.train_step, model.test_step = _with_axis(model.train_step), _with_axis(model.test_step)
    _prepared.add(model)
    return model


def _with_axis(step: Step) -> Step:
    return lambda data: {name: tf.reshape(value, [1]) for name, value in step(data).items()}


def several(strategy: tf.distribute.Strategy) -> bool:
    """Whether it is one of a job of several workers, who must do the same at the same time."""
    return bool(strategy.extended._in_multi_worker_mode())


def check_asker(strategy: tf.distribute.Strategy) -> None:
    """Raise if Keras 3 asks its caller something, for a `fit` that is going to fail.

    Raises:
        TypeError: several workers train a model that is not prepared for it.
    """
    asker = sys._getframe(2).f_globals.get("__name__", "")
    if asker.startswith("keras.src.trainers") and several(strategy) and not _prepared:
        raise TypeError(
            "Keras 3's `fit` fails under a MultiWorkerMirroredStrategy unless the model is prepared: "
            "model = tb.across_workers(model), in the strategy's scope."
        )
