"""Index files for DALI's TFRecord reader: a text line `offset length` for each record.

The reader takes a list of (shard, index file) pairs and reads each pair's lines in order, so an epoch's order is a list
of runs. A run of neighbours always has the same file; with single records, or fixed blocks, that means an epoch writes
nothing and only lists the same files in another order. One of several replicas reads every n-th record of a block, from
a place that depends on what comes before it: there an epoch has files of its own, and those of past epochs go.
"""

import fcntl
import os
import shutil
import tempfile
import weakref
from collections import deque
from pathlib import Path

import numpy as np

from dali_pipe.geometry import Ints
from dali_pipe.records import Records

_PREFIX, _LOCK = "dali-tf-index-", "lock"
MOST_FILES = 131_072  # before those of past epochs go; a file takes a page of memory
_KEPT_EPOCHS = 3  # one that runs, one that begins, and one that Keras makes to spare


class IndexFiles:
    """A temporary folder with the index files of one view; it goes with this object or with the process.

    Args:
        records: the view.
        stride: between the records of a run, in places of the view: the number of replicas.
    """

    def __init__(self, records: Records, stride: int = 1):
        self._records, self._stride = records, stride
        self._written, self._recent = set[str](), deque[set[str]](maxlen=_KEPT_EPOCHS)
        self._paths = [str(path.resolve()) for path in records.shards]
        self.folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_fast_folder())
        aside = f"{self.folder}/{_LOCK}.part"
        lock = os.open(aside, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as the process lives: see _sweep
        os.rename(aside, f"{self.folder}/{_LOCK}")  # nobody finds it before it is held
        weakref.finalize(self, _remove, self.folder, lock, os.getpid())

    def write(self, order: Ints) -> tuple[list[str], list[str]]:
        """Shard paths and index paths, pair by pair, that make the reader follow `order` (places in the view)."""
        shard = self._records.table["shard"][order]
        cuts = np.flatnonzero((np.diff(order) != self._stride) | (np.diff(shard) != 0)) + 1
        firsts = np.concatenate([[0], cuts])
        lengths = np.diff(np.concatenate([firsts, [len(order)]])).tolist()
        index = [self._index(start, length) for start, length in zip(order[firsts].tolist(), lengths, strict=True)]
        self._forget(set(index))
        return [self._paths[s] for s in shard[firsts].tolist()], index

    def _index(self, start: int, length: int) -> str:
        end = start + (length - 1) * self._stride + 1
        path = f"{self.folder}/{start}-{end}"
        if path not in self._written:
            rows = self._records.table[start : end : self._stride]
            spans = zip(rows["offset"].tolist(), rows["length"].tolist(), strict=True)
            aside = f"{path}.part"
            with open(aside, "wb", buffering=0) as file:
                file.write(b"".join([b"%d %d\n" % span for span in spans]))
            os.rename(aside, path)
            self._written.add(path)
        return path

    def _forget(self, index: set[str]) -> None:
        """Remove the files that no recent epoch has, if there are too many."""
        if index not in self._recent:
            self._recent.append(index)
        if len(self._written) > MOST_FILES:
            for path in self._written.difference(*self._recent):
                os.unlink(path)
                self._written.discard(path)


def _remove(folder: str, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the object, not the folder
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _fast_folder() -> str:
    """tmpfs where there is one: an epoch of single records has a small file for each."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    _sweep(folder)
    return folder


def _sweep(folder: str) -> None:
    """Remove what killed processes left. A lock tells the living, across containers that share the folder too."""
    for left in Path(folder).glob(f"{_PREFIX}*"):
        try:
            with open(left / _LOCK, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # somebody holds it, is about to, or is removing it too
            continue
