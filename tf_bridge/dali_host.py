"""DALI on the CPU, run from Python: bytes go in and tensors come out, and neither is copied.

The same pipelines serve epoch after epoch, in any order, as nothing of an epoch is in their graph: Python reads the
encoded images of a batch and hands them over with their tickets. Nothing has to be built when an epoch begins, and what
is wrong with a shard or an image is a Python exception.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dali_pipe import pipeline, reader
from dali_pipe.geometry import Ints
from tf_bridge.source import Source

PIPELINES = 2  # each batch goes to the next: where the ops of one wait for each other, the other has the cores
READ_AHEAD = 4  # batches that are read at once, for storage that answers slowly
_ALIGNMENT = 64  # bytes; TensorFlow's kernels abort the process over less

Batch = tuple[tf.Tensor, tf.Tensor]


class _Fed(NamedTuple):
    """What a pipeline gets for a batch.

    Attributes:
        images: encoded, `(length,)` uint8 each; they lie in `memory`.
        tickets: `(b, lanes)`.
        memory: used again when the batch is done: fresh pages would cost as much as reading.
    """

    images: list[NDArray[np.uint8]]
    tickets: Ints
    memory: NDArray[np.uint8]


class _Line:
    """Pipelines that take batches in turn, with what they have in work: one batch each at most."""

    def __init__(self, pipes: Sequence[Any]):
        for pipe in pipes:
            # The first `schedule_run` would run as many batches as fit, and an epoch may have fewer.
            pipe._first_iter = False
        self._feeds, self._gives = itertools.cycle(pipes), itertools.cycle(pipes)
        self._fed = deque[_Fed]()

    def feed(self, fed: _Fed) -> None:
        """Begin a batch."""
        pipe = next(self._feeds)
        self._fed.append(fed)  # DALI reads this memory
        pipe.feed_input(pipeline.ENCODED, fed.images)
        pipe.feed_input(pipeline.INPUT, fed.tickets)
        pipe.schedule_run()

    def take(self) -> tuple[Batch, NDArray[np.uint8]]:
        """The next batch, and the memory that it has no more use for.

        Raises:
            RuntimeError: DALI's own message; the line is of no use then.
        """
        pipe = next(self._gives)
        images, labels = pipe.share_outputs()
        pipe.release_outputs()
        return (_tensor(images), _tensor(labels)), self._fed.popleft().memory

    def __len__(self) -> int:
        """Batches in work."""
        return len(self._fed)


def _tensor(batch: Any) -> tf.Tensor:
    """A DALI batch as a tensor on the same memory, which stays until TensorFlow lets go of it."""
    dense = batch.as_tensor()
    if np.asarray(dense).ctypes.data % _ALIGNMENT:
        return tf.constant(np.asarray(dense))
    return tf.experimental.dlpack.from_dlpack(dense.__dlpack__())


class HostEngine:
    """Runs one source's epochs."""

    def __init__(self, source: Source, num_threads: int):
        self._source, self._threads = source, num_threads
        self._pipelines = min(PIPELINES, num_threads)  # who asks for one thread gets no second
        self._readers = ThreadPoolExecutor(READ_AHEAD, "dali-tf-read")
        self._idle, self._memory = list[_Line](), list[NDArray[np.uint8]]()

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch, in order.

        Raises:
            RecordError: a shard has changed since it was scanned.
            OSError: it cannot be read.
            RuntimeError: DALI's own message.
        """
        line = self._idle.pop() if self._idle else self._line()
        reads = self._reads(epoch)
        for fed in itertools.islice(reads, self._pipelines):
            line.feed(fed)
        while line:
            batch, memory = line.take()
            self._memory.append(memory)
            for fed in itertools.islice(reads, 1):
                line.feed(fed)
            yield batch
        self._idle.append(line)  # one that failed, or has batches in work that nobody wants, is let go

    def _reads(self, epoch: int) -> Iterator[_Fed]:
        under_way = deque[Future[_Fed]]()
        for step in range(self._source.start, self._source.steps):
            under_way.append(self._readers.submit(self._read, epoch, step))
            if len(under_way) == READ_AHEAD:
                yield under_way.popleft().result()
        for read in under_way:
            yield read.result()

    def _read(self, epoch: int, step: int) -> _Fed:
        records = self._source.plan.records
        places, tickets = self._source.batch(epoch, step)
        memory = self._memory.pop() if self._memory else np.empty(0, np.uint8)
        needed = reader.encoded_size(records, places)
        if memory.size < needed:
            memory = np.empty(needed + needed // 4, np.uint8)  # the next may need a little more
        return _Fed(reader.read_images(records, places, memory), tickets, memory)

    def _line(self) -> _Line:
        return _Line([self._pipeline() for _ in range(self._pipelines)])

    def _pipeline(self) -> Any:
        source = self._source
        return pipeline.build(
            pipeline.memory_feed,
            source.plan.recipe,
            batch_size=source.batch_size,
            num_threads=self._threads,
            undersized=source.undersized,
            prefetch_queue_depth=1,
        )
