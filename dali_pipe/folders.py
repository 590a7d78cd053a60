"""Where things are kept; needs nothing but Python, so that it can be said when nothing else works."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$DALI_TF_CACHE`, else `dali-tf` in the user's cache folder."""
    if chosen := os.environ.get("DALI_TF_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dali-tf"
