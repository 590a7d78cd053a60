"""What scanning or verifying a shard found, kept on disk until the shard changes.

One file a shard. An entry is named by a hash of the shard's real path, what was asked of it, and the format version; it
is valid while the shard's size, modification time, inode and the checksums of its first and last 4 KB are what they
were. Entries are written aside and renamed, so a reader sees a whole one or none, and the last of two writers wins with
the same content. A cache that cannot be written only costs time.
"""

import hashlib
import logging
import os
import tempfile
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipe.folders import cache_folder

__all__ = ["FORMAT_VERSION", "Arrays", "cache_folder", "fingerprint", "load", "store"]

log = logging.getLogger(__name__)

FORMAT_VERSION = 4
_EDGE = 4096
Arrays = dict[str, NDArray[Any]]


def fingerprint(path: str | os.PathLike[str]) -> NDArray[np.int64]:
    """Size, mtime in ns, inode, and CRC-32 of the first and last 4 KB of a file."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        head = zlib.crc32(file.read(_EDGE))
        file.seek(max(0, status.st_size - _EDGE))
        tail = zlib.crc32(file.read(_EDGE))
    return np.array([status.st_size, status.st_mtime_ns, status.st_ino, head, tail], np.int64)


def _entry(path: str | os.PathLike[str], kind: str) -> Path:
    name = f"{FORMAT_VERSION}\0{kind}\0{os.path.realpath(path)}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return cache_folder() / "shards" / digest[:2] / f"{digest[2:34]}.npz"


# numpy parses an array's header with `ast.literal_eval`, which now and then fails in one of several threads.
_one_at_a_time = threading.Lock()


def load(path: str | os.PathLike[str], kind: str, now: NDArray[np.int64]) -> Arrays | None:
    """The entry of a shard if it holds for the fingerprint `now`; None where there is none, a stale or a broken one."""
    entry = _entry(path, kind)
    try:
        # numpy leaves a broken file open if it opens it itself
        with _one_at_a_time, open(entry, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever a half-written or foreign file makes numpy and zipfile raise
        log.warning("Scanning %s again: its cache entry %s is unreadable (%s).", path, entry, error)
        return None
    if not np.array_equal(arrays.pop("fingerprint", None), now):
        return None
    return arrays


def store(path: str | os.PathLike[str], kind: str, now: NDArray[np.int64], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep `arrays` for a shard whose fingerprint was `now` before it was read."""
    entry = _entry(path, kind)
    aside = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, suffix=".part", delete=False) as file:
            aside = file.name
            np.savez(file, fingerprint=now, **arrays)  # type: ignore[arg-type]  # numpy's stub reads ** as allow_pickle
        os.replace(aside, entry)
    except OSError as error:
        log.warning("The scan of %s is not kept: %s. Set DALI_TF_CACHE to a writable folder.", path, error)
        if aside is not None:
            Path(aside).unlink(missing_ok=True)
