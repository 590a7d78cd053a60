"""Batches' memory, kept by the process from one batch to the next."""

import ctypes
import logging
import os
from functools import cache

log = logging.getLogger(__name__)

# From glibc's malloc.h. Setting any of them also ends their adjusting themselves.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20  # more is refused
_KEPT = 64 << 20  # bytes at the top of each of malloc's heaps that are not given back
SWITCH = "DALI_TF_KEEP_PAGES"


@cache
def keep_pages() -> None:
    """Let malloc keep the pages of batches that are freed.

    A batch is megabytes, and malloc gives a block of that size back to the system when it is freed. The next batch then
    faults in each of its pages anew, which took a fifth of the CPU time of decoding. This is a setting of the whole
    process, for some hundred megabytes at most; the environment variable `DALI_TF_KEEP_PAGES=0` leaves malloc alone.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:  # another C library
        return
    settings = {_M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD, _M_TRIM_THRESHOLD: 16 * _KEPT, _M_TOP_PAD: _KEPT}
    refused = [name for name, value in settings.items() if not mallopt(name, value)]
    log.debug("malloc keeps pages; refused: %s", refused)
