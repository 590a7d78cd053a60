"""A few training steps under TensorFlow's profiler: a Keras callback."""

import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

WARM_UP, STEPS = 3, 5  # steps of the epoch before the profile, and in it


class StepProfile(keras.callbacks.Callback):
    """Profiles some steps of one epoch, for TensorBoard's Profile tab.

    Keras's own `TensorBoard(profile_batch=…)` marks its steps with a name that the input-pipeline page does not take
    for steps; without an accelerator the page then stays empty.

    Args:
        folder: TensorBoard's folder of logs.
        epoch: which epoch, counted from 0; its first steps are left out where it has enough.

    Attributes:
        done: whether there is a profile.
    """

    def __init__(self, folder: str | os.PathLike[str], epoch: int = 1):
        super().__init__()
        self.done = False
        self._folder, self._epoch = Path(folder), epoch
        self._first = self._current = -1
        self._running = False
        self._step: Any = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Settle which step is the first."""
        self._current = epoch
        steps = (self.params or {}).get("steps") or WARM_UP + STEPS
        self._first = max(0, min(WARM_UP, steps - STEPS))

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin the profile, or a step of it."""
        if not (self.done or self._running) and self._current == self._epoch and batch >= self._first:
            tf.profiler.experimental.start(str(self._folder))
            self._running = True
        if self._running:
            self._step = tf.profiler.experimental.Trace("train", step_num=batch, _r=1)
            self._step.__enter__()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """End the step, and the profile with the last."""
        if not self._running:
            return
        self._step.__exit__(None, None, None)
        if batch >= self._first + STEPS - 1:
            self._stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """End a profile whose epoch was too short."""
        if self._running:
            self._stop()

    def _stop(self) -> None:
        tf.profiler.experimental.stop()
        self._running, self.done = False, True
