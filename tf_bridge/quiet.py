"""TensorFlow and DALI's plugin, loaded without the lines that no user can act on."""

import os
import sys
from contextlib import suppress
from importlib import import_module


def load_frameworks() -> None:
    """Import both, where they are there; whoever needs one that cannot be loaded will hear why.

    Some of their lines come from C++ before any log level counts, so the descriptor itself is turned away meanwhile.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        for module in ("tensorflow", "nvidia.dali.plugin.tf"):
            with suppress(Exception):
                import_module(module)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
