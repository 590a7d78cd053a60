"""Keras callbacks that go with an `ImageDataset`."""

import statistics
import time
from typing import Any

import keras

from tf_bridge.dataset import ImageDataset


class EpochSync(keras.callbacks.Callback):
    """Gives the data set Keras's own epoch numbers.

    Not needed for `fit(initial_epoch=0)`: the data set counts by itself. With `initial_epoch`, or with epochs of three
    batches or fewer on a GPU, it makes epoch `n` of the training epoch `n` of the data.

    Args:
        dataset: the training data.
    """

    def __init__(self, dataset: ImageDataset):
        super().__init__()
        self._dataset = dataset

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Runs before Keras makes the epoch's iterator."""
        self._dataset.set_epoch(epoch)


class Throughput(keras.callbacks.Callback):
    """Images a second of the training steps.

    Each epoch is timed from the end of its first step, which compiles or fills the pipeline, to the end of its last.

    Args:
        batch_size: images a step.
    """

    def __init__(self, batch_size: int):
        super().__init__()
        self._batch_size, self._rates = batch_size, list[float]()
        self._began = self._ended = 0.0
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the time."""
        self._ended = time.perf_counter()
        if batch == 0:
            self._began = self._ended
        self._steps = batch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Close the epoch's account."""
        if self._steps:
            self._rates.append(self._steps * self._batch_size / (self._ended - self._began))

    @property
    def images_per_second(self) -> float | None:
        """Median over the epochs; None before one of at least two steps has ended."""
        return statistics.median(self._rates) if self._rates else None
