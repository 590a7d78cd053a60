"""Python functions inside tf.data graphs, and how they end with the interpreter."""

import atexit
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import tensorflow as tf

# Functions for tf.data that are TensorFlow's already: tracing them through AutoGraph only blurs their errors.
graph = tf.autograph.experimental.do_not_convert

P = ParamSpec("P")
T = TypeVar("T")

_IDLE, _PATIENCE = 0.05, 5.0  # seconds


class _Calls:
    """Lets no call be under way when the interpreter goes.

    TensorFlow's threads call into Python for the batches ahead. One that does so while the interpreter is being torn
    down never returns, and whoever destroys the iterator then waits for it for ever. So at exit calls are refused, and
    the interpreter waits for the last to return.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way, self._last, self._closed = 0, 0.0, False
        atexit.register(self.close)

    def enter(self) -> None:
        with self._lock:
            self._last = time.monotonic()
            if self._closed:
                raise RuntimeError("Python is shutting down")
            self._under_way += 1

    def leave(self) -> None:
        with self._lock:
            self._under_way -= 1
            self._last = time.monotonic()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and (self._under_way or time.monotonic() - self._last < _IDLE):
            time.sleep(_IDLE / 5)


_calls = _Calls()


def guarded(function: Callable[P, T]) -> Callable[P, T]:
    """A function that may be handed to `tf.numpy_function`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        _calls.enter()
        try:
            return function(*args, **kwargs)
        finally:
            _calls.leave()

    return call


def telling(
    values: Sequence[tf.Tensor], when: tf.Tensor, tell: Callable[[int], None], number: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """In a graph: the same values, before which `tell(number)` is called if `when` holds."""

    def told(number: int) -> bool:
        tell(int(number))
        return True

    def call() -> tf.Tensor:
        return tf.numpy_function(guarded(told), [number], tf.bool)

    with tf.control_dependencies([tf.cond(when, call, lambda: tf.constant(True))]):
        return tuple(tf.identity(value) for value in values)
