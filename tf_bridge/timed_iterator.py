"""When a training step asks for its batch, and when it gets it.

Keras pulls batches inside its compiled step, so nothing in Python sees the wait. `TimedIterator` stands in for the
iterator there: two clock readings around the pull, as ops of the same graph. What is pulled, and how, stays as it was.
"""

from functools import cache
from typing import Any, NamedTuple

import tensorflow as tf


class Pull(NamedTuple):
    """The last pull of a batch.

    Attributes:
        asked: when, in seconds since 1970.
        ready: when the batch was there.
        images: its size.
    """

    asked: float
    ready: float
    images: int


@cache
def _clock() -> tf.Variable:
    """`(asked, ready, images)`. One for the process: a step that was compiled for one `fit` serves the next."""
    with tf.init_scope(), tf.device("/cpu:0"):
        return tf.Variable(tf.zeros(3, tf.float64), trainable=False, name="input_clock")


def last_pull() -> Pull:
    """What the last step noted."""
    handle = _clock().handle
    # Once a step; the variable's own `numpy()` takes three times as long.
    asked, ready, images = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64).numpy().tolist()
    return Pull(asked, ready, int(images))


class TimedIterator(tf.data.Iterator):
    """An iterator that notes when batches are asked for and when they are there.

    Args:
        iterator: of a `tf.data.Dataset`, on any device.
    """

    def __init__(self, iterator: tf.data.Iterator):
        super().__init__()
        self.iterator = iterator
        _clock()

    @staticmethod
    def can_time(iterator: Any) -> bool:
        """Whether this is a plain dataset's iterator; those of `tf.distribute` are several in one."""
        return isinstance(iterator, tf.data.Iterator) and isinstance(iterator._type_spec, tf.data.IteratorSpec)

    @property
    def element_spec(self) -> Any:
        """As the iterator's."""
        return self.iterator.element_spec

    @property
    def _type_spec(self) -> tf.TypeSpec:
        return _TimedSpec(self.iterator._type_spec)

    def get_next(self) -> Any:
        """The next batch."""
        asked = _now()
        with tf.control_dependencies([asked]):
            batch = self.iterator.get_next()
        tensors = tf.nest.flatten(batch, expand_composites=True)
        with tf.control_dependencies(tensors):
            ready = _now()
        with tf.device("/cpu:0"):
            images = tf.shape(tensors[0], tf.int64)[0] if tensors[0].shape.rank != 0 else tf.constant(1, tf.int64)
            _clock().assign(tf.stack([asked, ready, tf.cast(images, tf.float64)]))
        with tf.control_dependencies([ready]):  # or the step's first ops could keep the clock from being read
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    def get_next_as_optional(self) -> Any:
        """Not timed: Keras pulls this way where the pull and a step run side by side."""
        return self.iterator.get_next_as_optional()

    def __next__(self) -> Any:
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None


def _now() -> tf.Tensor:
    with tf.device("/cpu:0"):
        return tf.timestamp()


class _TimedSpec(tf.TypeSpec):
    """Takes a `TimedIterator` through a `tf.function`'s arguments."""

    def __init__(self, iterator: tf.data.IteratorSpec):
        self._iterator = iterator

    @property
    def value_type(self) -> type[TimedIterator]:
        """What it describes."""
        return TimedIterator

    @property
    def _component_specs(self) -> Any:
        return (self._iterator,)

    def _serialize(self) -> Any:
        return (self._iterator,)

    def _to_components(self, value: TimedIterator) -> Any:
        return (value.iterator,)

    def _from_components(self, components: Any) -> TimedIterator:
        return TimedIterator(components[0])
