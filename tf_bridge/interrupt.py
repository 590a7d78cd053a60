"""Ctrl-C during `fit`, heeded wherever the main thread is when it comes."""

import signal
import threading
from types import FrameType
from typing import Any

import keras


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` with KeyboardInterrupt after Ctrl-C, also where Python loses the exception.

    Python raises KeyboardInterrupt wherever the main thread happens to be: in a `__del__`, a weak reference's callback
    or a function that TensorFlow called it is dropped, and the training goes on. So the signal is remembered, and
    raised again at the next batch and at the end of the `with` block.

        with Interrupt() as interrupt:
            model.fit(..., callbacks=[interrupt])
    """

    def __init__(self) -> None:
        super().__init__()
        self._came = False
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self._raise_lost()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        raise KeyboardInterrupt

    def _raise_lost(self) -> None:
        if self._came:
            raise KeyboardInterrupt

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Raise what was lost."""
        self._raise_lost()
