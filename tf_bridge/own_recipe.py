"""A recipe that the user wrote, from where `--recipe` says it is."""

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from dali_pipe.recipe import Recipe


def load(place: str) -> Recipe:
    """The recipe at `MODULE:NAME`, looked for from the current folder on, or at `FILE.py:NAME`.

    Raises:
        ValueError: nothing can be run there, or there is no such recipe; says what there is.
    """
    where, _, name = place.rpartition(":")
    names = _names(where, place)
    found = names.get(name)
    if isinstance(found, Recipe):
        return found
    came = f"of type {type(found).__name__}" if name in names else "not there"
    recipes = [key for key, value in names.items() if isinstance(value, Recipe)]
    way_out = f"Recipes there: {', '.join(recipes)}." if recipes else f"Write `{name} = dali_pipe.Recipe(...)` there."
    raise ValueError(f"`--recipe` must name a dali_pipe.Recipe. Received: {place!r}, which is {came}. {way_out}")


def _names(where: str, place: str) -> dict[str, Any]:
    """What the file or module defines."""
    is_file = where.endswith(".py")
    folder = str((Path(where).parent if is_file else Path()).resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python FILE.py` and `python -m MODULE` do
    try:
        return runpy.run_path(where) if is_file else vars(import_module(where))
    except (Exception, SystemExit) as error:  # it is the user's code, which may be a program
        raise ValueError(
            f"`--recipe` must name a file or module that Python can run. Received: {place!r} "
            f"({type(error).__name__}: {' '.join(str(error).split())}). Give the path of its file, or mend it: "
            "`dali-tf -v` shows where it stopped."
        ) from error
