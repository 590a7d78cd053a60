"""The state of a training run on disk: one file, whole or not there, and the one before it.

`state.npz` is written aside, brought to the disk and renamed, so that a process killed at any moment leaves the last
whole state. `previous.npz` is for what no rename guards against: a file that was cut short while it was copied, or
damaged on the disk. zip's checksums tell.
"""

import json
import logging
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

FORMAT, VERSION = "dali-tf training state", 1
NAME, PREVIOUS, ASIDE = "state.npz", "previous.npz", "state.npz.part"

Values = list[NDArray[Any]]

# Whatever a half-written or foreign file makes numpy, zipfile and json raise.
_DAMAGE = (zipfile.BadZipFile, OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError, AttributeError)


class StateError(ValueError):
    """A file that is not a whole training state of this version."""


@dataclass(frozen=True, eq=False)
class Saved:
    """What a state file holds.

    Attributes:
        header: whatever JSON can hold.
        groups: values of variables, by the name of their group.
    """

    header: dict[str, Any]
    groups: dict[str, Values]


def write(folder: Path, saved: Saved, keep: bool) -> None:
    """Make `saved` the folder's state.

    Args:
        folder: made if need be.
        saved: the state.
        keep: the state that is there becomes the previous one; otherwise it is another run's, or broken, and goes.

    Raises:
        OSError: it could not be written, and the state that was there is still there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    aside, state, previous = folder / ASIDE, folder / NAME, folder / PREVIOUS
    try:
        with open(aside, "wb") as file:
            np.savez(file, **_arrays(saved))  # type: ignore[arg-type]  # numpy's stub reads ** as allow_pickle
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    if keep and state.exists():
        os.replace(state, previous)  # killed after this, the run goes on from the previous state, which is its last
    os.replace(aside, state)
    if not keep:
        previous.unlink(missing_ok=True)
    _sync(folder)


def _sync(folder: Path) -> None:
    """Bring the renaming itself to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _arrays(saved: Saved) -> dict[str, NDArray[np.uint8]]:
    """Everything as bytes, as .npz knows neither JSON nor bfloat16; the header says what they were."""
    specs = {name: [[v.dtype.name, list(v.shape)] for v in values] for name, values in saved.groups.items()}
    header = {"format": FORMAT, "version": VERSION, "specs": specs, **saved.header}
    values = {f"{name}/{k}": _bytes(v.tobytes()) for name, group in saved.groups.items() for k, v in enumerate(group)}
    return {"header": _bytes(json.dumps(header).encode()), **values}


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def read(folder: Path) -> tuple[Saved, bool] | None:
    """The folder's state, and whether it is the latest; None if there is none.

    A latest state that is broken or foreign is a warning that says so, and the previous one is taken.

    Raises:
        StateError: there is no whole state, but files that should be; names them, and what is wrong with them.
    """
    if (folder / ASIDE).exists():
        log.info("%s was being written when the run ended; it is not used.", folder / ASIDE)
    faults = []
    for name in (NAME, PREVIOUS):
        try:
            saved = _read(folder / name)
        except FileNotFoundError:
            continue
        except StateError as error:
            faults.append(str(error))
            continue
        if faults:
            log.warning("%s Going on from the state before it, %s.", faults[0], folder / name)
        return saved, not faults
    if faults:
        raise StateError(f"{' '.join(faults)} Move such files out of the folder to begin the run anew.")
    return None


def _read(path: Path) -> Saved:
    try:
        # numpy leaves a broken file open if it opens it itself
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            header: Any = json.loads(stored["header"].tobytes()) if "header" in stored else None
            _check_format(path, header)
            specs = header.pop("specs")
            groups = {
                name: [stored[f"{name}/{k}"].view(dtype).reshape(shape) for k, (dtype, shape) in enumerate(group)]
                for name, group in specs.items()
            }
    except (FileNotFoundError, PermissionError, IsADirectoryError, StateError):
        raise
    except _DAMAGE as error:
        raise StateError(f"{path} is not a whole training state (cut short, damaged, or not ours): {error}.") from error
    return Saved(header, groups)


def _check_format(path: Path, header: Any) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise StateError(f"{path} is not a training state, but some other .npz file.")
    if header["version"] != VERSION:
        raise StateError(f"{path} must be of version {VERSION}. Received: version {header['version']}.")
