"""Ctrl-C during `fit`: the step under way is finished, wherever the main thread is when it comes."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import keras

_TOLD = b"\nStopping after this step, or this validation. Ctrl-C again stops as soon as TensorFlow lets go.\n"


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` with KeyboardInterrupt between two steps after Ctrl-C, and wherever it is after a second.

    Python would raise it wherever the main thread happens to be: in the middle of a step, where a saved state would be
    of no step; or in a `__del__`, a weak reference's callback or a function that TensorFlow called, where it is
    dropped, and the training goes on. So the signal is remembered, and raised before the next step, before the next
    epoch and at the end of the `with` block.

        with Interrupt() as interrupt:
            model.fit(..., callbacks=[interrupt])

    Args:
        begins: called when Ctrl-C comes first, by the signal's handler.
    """

    def __init__(self, begins: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._begins, self._came = begins, False
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        heeded = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # which background jobs are started with
        if heeded and threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self._raise()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True
        self._begins()
        os.write(2, _TOLD)  # Python's own streams may be in the middle of a line

    def _raise(self) -> None:
        if self._came:
            raise KeyboardInterrupt

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Raise, if Ctrl-C came."""
        self._raise()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Raise, if Ctrl-C came."""
        self._raise()
