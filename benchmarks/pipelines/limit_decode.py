"""The limit of any pipeline that decodes on this CPU: the epoch's regions, decoded by libjpeg-turbo alone.

The encoded images are in memory, a C loop (`regions.c`) decodes the very windows that our data set decodes, a batch a
thread, on as many threads as the case has. Nothing is read, shuffled, resized, flipped or normalised.
"""

import ctypes
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.case import Case, SkipError, work_folder
from dali_pipe import plan, reader
from dali_pipe.geometry import Ints

SOURCE = Path(__file__).with_name("regions.c")
MOST = 4096  # images that are held in memory


def make(case: Case) -> "Regions":
    """A data set of uint8 batches; with a recipe that resizes, each image holds its window at its start."""
    if case.dtype != "uint8":
        raise SkipError("a decoder gives uint8")
    return Regions(case, library())


def library() -> ctypes.CDLL:
    """`regions.c`, compiled once.

    Raises:
        SkipError: there is no compiler, or no libjpeg-turbo with its header.
    """
    path = work_folder() / f"regions-{SOURCE.stat().st_mtime_ns}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile(path)
    return ctypes.CDLL(str(path))


def _compile(path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SkipError("no C compiler (Debian: apt-get install gcc libjpeg-dev)")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(path), str(SOURCE), "-ljpeg"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SkipError(f"libjpeg-turbo does not compile (Debian: apt-get install libjpeg-dev): {done.stderr[:200]}")


class Regions:
    """Batches of decoded regions, an epoch each time it is iterated."""

    def __init__(self, case: Case, decoder: ctypes.CDLL):
        self._case, self._decoder = case, decoder
        records = case.records.take(MOST)
        self._plan = plan.Plan(records, case.ours, 0, case.shuffle)
        self._images = [bytes(image) for image in reader.read_images(records, np.arange(len(records)))]
        self._epoch = 0
        self._buffers = [np.empty(0, np.uint8)] * (2 * case.threads + 2)  # used in turn: fresh memory has its price

    def __iter__(self) -> Iterator[tuple[NDArray[np.uint8], Ints]]:
        """One epoch, batches in order, one in work for each thread and one waiting."""
        order = self._plan.order(self._epoch)
        tickets = self._plan.tickets(self._epoch, order, self._case.batch_size)
        self._epoch += 1
        size, waiting = self._case.batch_size, deque[Future[Any]]()
        with ThreadPoolExecutor(self._case.threads) as pool:
            for step, at in enumerate(range(0, len(order) - size + 1, size)):
                rows = slice(at, at + size)
                waiting.append(pool.submit(self._batch, step % len(self._buffers), order[rows], tickets[rows]))
                if len(waiting) > 2 * self._case.threads:
                    yield waiting.popleft().result()
            for batch in waiting:
                yield batch.result()

    def _batch(self, slot: int, places: Ints, tickets: Ints) -> tuple[NDArray[np.uint8], Ints]:
        first = plan.FIRST_PARAMETER
        windows = np.ascontiguousarray(tickets[:, first : first + 4], np.int32)
        encoded = [self._images[place] for place in places.tolist()]
        area = max(int((windows[:, 2] * windows[:, 3]).max()), self._case.size**2)
        out = self._buffer(slot, len(places) * area * 3).reshape(len(places), -1)
        bad = self._decoder.decode_regions(
            len(encoded),
            (ctypes.c_char_p * len(encoded))(*encoded),
            (ctypes.c_ulong * len(encoded))(*map(len, encoded)),
            windows.ctypes.data_as(ctypes.c_void_p),
            int(self._case.dct == "fast"),
            out.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(out.strides[0]),
        )
        if bad:
            raise ValueError(f"libjpeg-turbo could not decode {bad} of {len(places)} images")
        shape = (len(places), self._case.size, self._case.size, 3)
        return out[:, : self._case.size**2 * 3].reshape(shape), tickets[:, plan.LABEL]

    def _buffer(self, slot: int, size: int) -> NDArray[np.uint8]:
        if len(self._buffers[slot]) < size:
            self._buffers[slot] = np.empty(size, np.uint8)
        return self._buffers[slot][:size]
