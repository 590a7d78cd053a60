"""What to give instead of a path that names no data: said where a folder was given, or a glob pattern that fails."""

import glob
import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path

from dali_pipe import tfrecord
from dali_pipe.tfrecord import RecordError

_INFO = "dataset_info.json"
_TRIED = 20  # files of a folder: somebody's home is not read through


def way_out(data: str) -> str | None:
    """In a clause for the end of a message; None where nothing is there to tell from.

    Args:
        data: a path or glob pattern that is not what it should be.
    """
    folder = Path(data).expanduser()
    if not folder.is_dir():
        return _of_pattern(data) if glob.has_magic(data) else None
    with suppress(OSError):  # a folder that may not be read
        if sets := _data_sets(folder):
            return f"this folder holds data sets: give one of them, such as {str(sets[0])!r}"
        if pattern := _pattern(folder):
            return f"this folder holds TFRecord files: give them as a glob, such as {pattern!r}"
    return None


def _of_pattern(pattern: str) -> str:
    if any(map(os.path.isfile, glob.iglob(os.path.expanduser(pattern)))):
        return "this is a glob of files, which `tb.from_tfrecords` takes"
    return "no file matches this glob"


def _data_sets(folder: Path) -> list[Path]:
    """Those that TFDS keeps as `name/version` or `name/config/version`, without the version."""
    return sorted(info.parent.parent for depth in ("*/*", "*/*/*") for info in folder.glob(f"{depth}/{_INFO}"))


def _pattern(folder: Path) -> str | None:
    """A pattern of TFRecord files in the folder: those that are called as the first one is, but for its number."""
    for path in sorted(islice((path for path in folder.iterdir() if path.is_file()), _TRIED)):
        with suppress(RecordError, OSError):
            tfrecord.scan(path)
            numbered = re.match(r"(.*?)\d+-of-\d+(.*)|(.*)\d{2,}(.*?)$", path.name)
            if numbered is None:
                return glob.escape(f"{folder}/") + "*" + glob.escape(path.suffix)
            before, after = (numbered[1] or numbered[3] or "").rstrip("0123456789"), numbered[2] or numbered[4] or ""
            return glob.escape(f"{folder}/{before}") + "*" + glob.escape(after)
    return None
