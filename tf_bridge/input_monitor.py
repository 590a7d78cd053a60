"""How much of the training time goes into waiting for input: a Keras callback."""

import csv
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tf_bridge.input_advice import advice
from tf_bridge.timed_iterator import Pull, TimedIterator, last_pull

LOGGED = ("input_wait", "images_per_second", "cpu_ms_per_image")
_NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class EpochInput:
    """What the input cost in one epoch.

    Attributes:
        epoch: counted from 0.
        input_wait: share of the time in which the model had nothing to do but wait for a batch, 0 to 1; NaN where it
            cannot be told.
        images_per_second: of the training steps, after the first.
        cpu_ms_per_image: milliseconds of the host's CPU an image, all threads, after the first step. Without an
            accelerator the model's own work is in it.
        cpu_cores: cores that were busy, on average, after the first step.
        opening: seconds it took to make the epoch's iterator; they count as waiting.
        seconds: from there to the end of the last step, without compiling.
    """

    epoch: int
    input_wait: float
    images_per_second: float
    cpu_ms_per_image: float
    cpu_cores: float
    opening: float
    seconds: float


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        pull: when it asked for its batch and got it; None where that was not seen.
        done: when its results were there, in seconds since 1970.
        cpu: seconds of CPU that the process had used by then.
    """

    pull: Pull | None
    done: float
    cpu: float


def waits(pulls: Sequence[Pull], done: Sequence[float]) -> list[float]:
    """Seconds that the model waited for each step's batch.

    Asking for a batch while the step before still runs on an accelerator is not waiting: that begins when the step
    ends, or the batch is asked for, whichever is later.
    """
    free = [pull.asked for pull in pulls[:1]] + list(done[: len(pulls) - 1])
    return [max(0.0, pull.ready - max(pull.asked, since)) for pull, since in zip(pulls, free, strict=True)]


def account(epoch: int, opening: float, steps: Sequence[Step]) -> EpochInput:
    """What an epoch's steps amount to.

    Args:
        epoch: counted from 0.
        opening: seconds it took to make the epoch's iterator.
        steps: one or more.
    """
    pulls, done = [step.pull for step in steps if step.pull is not None], [step.done for step in steps]
    seen = len(pulls) == len(steps)
    span = opening + done[-1] - (pulls[0].asked if seen else done[0])
    rest, cpu = done[-1] - done[0], steps[-1].cpu - steps[0].cpu
    images = sum(pull.images for pull in pulls[1:])
    return EpochInput(
        epoch=epoch,
        input_wait=(opening + sum(waits(pulls, done))) / span if seen and span > 0 else _NAN,
        images_per_second=images / rest if seen and rest > 0 else _NAN,
        cpu_ms_per_image=1000 * cpu / images if images else _NAN,
        cpu_cores=cpu / rest if rest > 0 else _NAN,
        opening=opening,
        seconds=span,
    )


class InputMonitor(keras.callbacks.Callback):
    """Tells how long the model waits for input, and what would help.

    At each epoch's end the logs get `input_wait` (the share of the time in which the model waited for a batch, 0 to 1),
    `images_per_second` and `cpu_ms_per_image`: `fit` shows them in its line, and callbacks that follow this one in the
    list, TensorBoard say, write them. After the second epoch, and whenever it is another, one sentence says what to
    change; where there is one epoch only, at its end.

    How it measures: the compiled training step itself notes when it asks for its batch and when the batch is there, and
    each epoch's iterator is timed while it is made. On an accelerator, which still computes when the step's call
    returns, the wait begins when the results of the step before are there. So it is the time in which the model stood
    still. Without an accelerator, input and model share the cores: what the input takes from the model while both run
    makes the steps longer, and is not counted as waiting.

    It works with whatever `fit` takes, and costs about 0.1 ms a step. Not measured, and said so: steps compiled with
    `steps_per_execution` above 1, which fetch batches and compute side by side, and training under a `tf.distribute`
    strategy. What concerns accelerators is not yet run on a GPU.

    Args:
        dataset: the training data; if it is an `ImageDataset`, the advice names its settings.
        folder: gets `input.csv`, a line an epoch, and TensorBoard's events; None writes neither.
        tell: takes the advice, a sentence; None keeps quiet.

    Attributes:
        epochs: an `EpochInput` for each epoch that ended.
    """

    async_safe = True  # Keras need not wait for the accelerator at each step on our account

    def __init__(
        self,
        dataset: Any = None,
        folder: str | os.PathLike[str] | None = None,
        tell: Callable[[str], object] | None = print,
    ):
        super().__init__()
        self.epochs = list[EpochInput]()
        self._dataset, self._folder, self._tell = dataset, None if folder is None else Path(folder), tell
        self._told = ""
        self._began, self._opening = 0.0, 0.0
        self._steps = list[Step]()
        self._done = dict[int, float]()  # by step; a thread of Keras's writes it
        self._timed: TimedIterator | None = None
        self._train: Callable[[Any], Any] | None = None
        self._writer: Any = None

    @property
    def input_wait(self) -> float:
        """Median over the epochs, without the first if there are more: it has warm-ups in it."""
        return self._median("input_wait")

    @property
    def images_per_second(self) -> float:
        """Median over the epochs, without the first if there are more."""
        return self._median("images_per_second")

    def _median(self, name: str) -> float:
        values = [getattr(epoch, name) for epoch in self.epochs[1:] or self.epochs]
        return statistics.median(values) if values else _NAN

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Runs before Keras makes the epoch's iterator."""
        if len(self.epochs) > 1:  # the first has warm-ups in it
            self._advise()
        self._steps, self._done, self._timed = [], {}, None
        if self.model.train_function is not self._train:
            self._train = self._watched(self.model.train_function)
            self.model.train_function = self._train
        self._began = time.time()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """The first time, the iterator has just been made."""
        if not self._steps:
            self._opening = time.time() - self._began

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called, by a thread of Keras's it may be, when the step's results have left the accelerator."""
        self._done[batch] = time.time()

    def _watched(self, train: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Keras's function of an iterator that runs one step, told to note its times."""
        train = getattr(train, "unwatched", train)  # a monitor before us whose `fit` was interrupted

        def step(iterator: Any) -> Any:
            timed = self._time(iterator)
            results = train(timed or iterator)
            self._steps.append(Step(last_pull() if timed else None, time.time(), time.process_time()))
            return results

        step.unwatched = train  # type: ignore[attr-defined]
        return step

    def _time(self, iterator: Any) -> TimedIterator | None:
        if self.model.steps_per_execution != 1 or not TimedIterator.can_time(iterator):
            return None
        if self._timed is None or self._timed.iterator is not iterator:
            self._timed = TimedIterator(iterator)
        return self._timed

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add up, and write it down."""
        if not self._steps:
            return
        steps = [Step(step.pull, self._done.get(n, step.done), step.cpu) for n, step in enumerate(self._steps)]
        found = account(epoch, self._opening, steps if _accelerated() else self._steps)
        self.epochs.append(found)
        if logs is not None:
            logs.update(_known(found))
        if self._folder is not None:
            self._write(self._folder, found)

    def _write(self, folder: Path, found: EpochInput) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        table = folder / "input.csv"
        new = not table.exists()
        with open(table, "a", newline="") as file:
            rows = csv.DictWriter(file, [field.name for field in fields(EpochInput)])
            if new:
                rows.writeheader()
            rows.writerow(asdict(found))
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(folder))
        with self._writer.as_default(step=found.epoch):
            for name, value in _known(found).items():
                tf.summary.scalar(f"input/{name}", value)
        self._writer.flush()

    def _advise(self) -> None:
        """Between the lines of `fit`: when the advice is another."""
        if not self.epochs or self._tell is None:
            return
        kind, sentence = advice(self.epochs[-1], self._dataset, _accelerated())
        if sentence and kind != self._told:
            self._tell(sentence)
        self._told = kind

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leave the model as it was."""
        self._advise()
        if self._train is not None and self.model.train_function is self._train:
            self.model.train_function = self._train.unwatched  # type: ignore[attr-defined]
        self._train = self._timed = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _known(found: EpochInput) -> dict[str, float]:
    """What there is to log."""
    values = {name: getattr(found, name) for name in LOGGED}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _accelerated() -> bool:
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())
