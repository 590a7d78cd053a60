"""TensorFlow and DALI without the lines that no user can act on."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from importlib import import_module


def load_frameworks() -> None:
    """Import both, where they are there; whoever needs one that cannot be loaded will hear why.

    Some of their lines come from C++ before any log level counts, so the descriptor itself is turned away meanwhile.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _turned_away():
        for module in ("tensorflow", "nvidia.dali.plugin.tf"):
            with suppress(Exception):
                import_module(module)


@contextmanager
def decoders(shown: bool = False) -> Iterator[None]:
    """Hide what decoders written in C print of each damaged image; what Python says on standard error is still seen.

    No log level stops these lines, and an exception says the same.

    Args:
        shown: hide nothing.
    """
    if shown:
        yield
        return
    with _turned_away() as kept:
        if not _is_descriptor_2():  # a stream of somebody else's
            yield
            return
        python = sys.stderr
        with open(kept, "w", encoding=python.encoding, errors="backslashreplace", buffering=1, closefd=False) as seen:
            logs = [h for h in logging.root.handlers if isinstance(h, logging.StreamHandler) and h.stream is python]
            try:
                for handler in logs:
                    handler.setStream(seen)
                with redirect_stderr(seen):
                    yield
            finally:
                for handler in logs:
                    handler.setStream(python)


def _is_descriptor_2() -> bool:
    try:
        return sys.stderr.fileno() == 2
    except (OSError, ValueError, AttributeError):  # no file at all
        return False


@contextmanager
def _turned_away() -> Iterator[int]:
    """Descriptor 2 leads nowhere; gives the one where it led before."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield kept
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
