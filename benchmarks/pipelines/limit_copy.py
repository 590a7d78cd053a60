"""What moving a batch once costs, on one core: a copy of its bytes, and nothing else."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.case import Case
from dali_pipe.geometry import Ints


def make(case: Case) -> "Copies":
    """A data set of copies of one batch."""
    return Copies(case)


class Copies:
    """As many batches an epoch as the other pipelines give."""

    def __init__(self, case: Case):
        shape = (case.batch_size, case.size, case.size, 3)
        self._batch: NDArray[Any] = np.random.default_rng(0).integers(0, 256, shape, np.uint8).astype(case.dtype)
        # Two batches in turn, each as cold as a batch that was just decoded.
        self._targets = [np.empty_like(self._batch) for _ in range(2)]
        self._labels = np.zeros(case.batch_size, np.int64)
        self._steps = len(case.records) // case.batch_size

    def __iter__(self) -> Iterator[tuple[NDArray[Any], Ints]]:
        """One epoch."""
        for step in range(self._steps):
            target = self._targets[step % 2]
            np.copyto(target, self._batch)
            yield target, self._labels
