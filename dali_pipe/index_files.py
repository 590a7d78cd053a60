"""Index files for DALI's TFRecord reader: a text line `offset length` for each record.

The reader takes a list of (shard, index file) pairs and reads each pair's lines in order, so an epoch's order is a list
of runs. A run of neighbours always has the same file; with single records, or fixed blocks, that means an epoch writes
nothing and only lists the same files in another order.
"""

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

import numpy as np

from dali_pipe.geometry import Ints
from dali_pipe.records import Records

_PREFIX, _LOCK = "dali-tf-index-", "lock"


class IndexFiles:
    """A temporary folder with the index files of one view; it goes with this object or with the process."""

    def __init__(self, records: Records):
        self._records = records
        self._paths = [str(path.resolve()) for path in records.shards]
        self._folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_fast_folder())
        aside = f"{self._folder}/{_LOCK}.part"
        lock = os.open(aside, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as the process lives: see _sweep
        os.rename(aside, f"{self._folder}/{_LOCK}")  # nobody finds it before it is held
        weakref.finalize(self, _remove, self._folder, lock, os.getpid())

    def write(self, order: Ints) -> tuple[list[str], list[str]]:
        """Shard paths and index paths, pair by pair, that make the reader follow `order` (places in the view)."""
        shard = self._records.table["shard"][order]
        cuts = np.flatnonzero((np.diff(order) != 1) | (np.diff(shard) != 0)) + 1
        starts = order[np.concatenate([[0], cuts])].tolist()
        lengths = np.diff(np.concatenate([[0], cuts, [len(order)]])).tolist()
        index = [self._index(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        return [self._paths[s] for s in shard[np.concatenate([[0], cuts])].tolist()], index

    def _index(self, start: int, end: int) -> str:
        path = f"{self._folder}/{start}-{end}"
        if not os.path.exists(path):
            rows = self._records.table[start:end]
            spans = zip(rows["offset"].tolist(), rows["length"].tolist(), strict=True)
            aside = f"{path}.part"
            with open(aside, "wb", buffering=0) as file:
                file.write(b"".join([b"%d %d\n" % span for span in spans]))
            os.rename(aside, path)
        return path


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
