"""Epochs run from Python, behind one tf.data dataset.

An epoch has an order of its own, and a tf.data graph is fixed when it is made. Here the epochs that an engine runs
become one dataset whose every iterator runs the counter's next epoch, so that `map`, `take` and Keras get fresh epochs;
batches pass by reference, at about 0.2 ms each. And since Python hands them over, an error can say which record it was.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_bridge import culprit
from tf_bridge.memory import keep_pages
from tf_bridge.python_calls import graph, guarded, telling
from tf_bridge.source import Source

ENGINE_ERRORS = (tf.errors.OpError, RuntimeError)  # of tf.data, of DALI
FETCHED = 2  # batches that wait to be handed out
AHEAD = 3  # batches that an engine may have in work when one fails


@dataclass
class _Run:
    epoch: int
    batches: Iterator[Any]


@dataclass
class _Ahead:
    """An epoch begun while the one before is still being trained on: what comes first of it is made then."""

    epoch: int
    batches: Future[Iterator[Any]]


class Runner:
    """Makes one dataset of a source's epochs.

    Args:
        source: what the epochs are.
        batches: begins an epoch, by its number, and gives its batches.
        engine: who decodes: "dali" or "tfdata".
        spec: of a batch.
    """

    def __init__(self, source: Source, batches: Callable[[int], Iterator[Any]], engine: str, spec: tuple[Any, Any]):
        self._source, self._begin_epoch, self._engine, self._spec = source, batches, engine, spec
        self._runs: dict[int, _Run] = {}
        self._tokens = itertools.count()
        self._thread, self._ahead = ThreadPoolExecutor(1, "dali-tf-epoch"), list[_Ahead]()

    def dataset(self) -> tf.data.Dataset:
        """The dataset; its cardinality is known."""
        tokens = tf.data.Dataset.from_generator(self._begin, output_signature=tf.TensorSpec((), tf.int64))
        batches = tokens.flat_map(graph(self._batches))
        count = tf.data.INFINITE_CARDINALITY if self._source.repeat else self._source.left
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # a batch is counted when it is handed out
        return batches.apply(tf.data.experimental.assert_cardinality(count)).with_options(options)

    def _begin(self) -> Iterator[int]:
        """A token for each epoch of one iterator; what it stands for goes when the iterator does."""
        keep_pages()
        number = self._source.counter.value
        while True:
            self._source.plan.records.check_unchanged()
            token = next(self._tokens)
            try:
                self._runs[token] = _Run(number, self._epoch(number))
            except ENGINE_ERRORS as error:
                raise self._explained(error, number, self._source.start) from error
            try:
                yield token
            finally:
                del self._runs[token]
            if not self._source.repeat:
                return
            number += 1

    def _epoch(self, number: int) -> Iterator[Any]:
        """The batches of an epoch, begun already if it was to be expected."""
        while self._ahead:
            ahead = self._ahead.pop()
            if ahead.epoch == number:
                return ahead.batches.result()
        return self._begin_epoch(number)

    def _begin_ahead(self, number: int) -> None:
        """Begin the epoch that comes next, unless another one is to."""

        def begin() -> Iterator[Any]:
            batches = self._begin_epoch(number)
            return itertools.chain(list(itertools.islice(batches, 1)), batches)

        if self._source.repeat or number == self._source.counter.value:
            self._ahead.append(_Ahead(number, self._thread.submit(begin)))

    def _batches(self, token: tf.Tensor) -> tf.data.Dataset:
        """An epoch's batches; some are fetched ahead, so that handing them over costs the training no time."""

        def fetch(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Not tf.numpy_function: that would copy every batch twice.
            parts = tf.py_function(guarded(self._next), [token, step], [spec.dtype for spec in self._spec])
            for part, spec in zip(parts, self._spec, strict=True):
                part.set_shape(spec.shape)
            return (step, *parts)

        def count(step: tf.Tensor, *parts: tf.Tensor) -> tuple[tf.Tensor, ...]:
            at = min(1, self._source.steps - 1)  # Keras never asks beyond the last
            return telling(parts, step == at, self._begun, token)

        steps = tf.data.Dataset.range(self._source.start, self._source.steps)
        return steps.map(graph(fetch)).prefetch(FETCHED).map(graph(count))

    def _begun(self, token: int) -> None:
        self._source.counter.begun(self._runs[token].epoch)

    def _next(self, token: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        run, place = self._runs[int(token)], int(step)
        try:
            batch: tuple[tf.Tensor, ...] = next(run.batches)
            if place == self._source.steps - 1:
                next(run.batches, None)  # to its end, where the engine takes back what ran it
                self._begin_ahead(run.epoch + 1)
            return batch
        except ENGINE_ERRORS as error:
            raise self._explained(error, run.epoch, place) from error

    def _explained(self, error: Exception, epoch: int, step: int) -> Exception:
        """An error that names the record that caused this one."""
        source = self._source
        failed = source.order(epoch)[step * source.batch_size : (step + AHEAD) * source.batch_size]
        found = culprit.find(source.plan.records, failed, self._engine)
        return found or RuntimeError(f"{self._engine} failed, though it can decode each of the images: {error}")
