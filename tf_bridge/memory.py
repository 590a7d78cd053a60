"""Batches' memory, kept by the process from one batch to the next."""

import ctypes
import os
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; more is refused
_NEVER = 1 << 30
SWITCH = "DALI_TF_KEEP_PAGES"


@cache
def keep_pages() -> None:
    """Let malloc keep the pages of batches that are freed.

    A batch is megabytes. TensorFlow 2.21 tells malloc, when the first `from_generator` data set of a process runs on
    Python 3.11, to map each block above 128 KB and to give it back when it is freed (`ApplyPython311MemoryPatch`); so
    each batch faults in all of its pages anew, which takes a fifth of the CPU time of decoding. Our own data sets are
    such, so this comes after that. It is a setting of the whole process; `DALI_TF_KEEP_PAGES=0` leaves malloc alone.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
