"""Which cases a command runs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from benchmarks.case import Case, RecipeName
from benchmarks.pipelines import TUNED_VARIANTS
from dali_pipe.recipe import DType
from tf_bridge.machine import gpus

# The rows of the main table, for each recipe. Pipelines with one dtype only have the one that people get from them.
_TABLE: dict[DType, tuple[str, ...]] = {
    "float32": ("record_input", "question", "keras_directory", "tuned", "ours", "limit_copy"),
    "uint8": ("grain_loader", "tuned", "ours", "limit_decode", "limit_copy"),
}
_CROP_ONLY = ("keras_directory", "grain_loader")


def engines() -> tuple[str, ...]:
    """Our engines on the devices of this machine, as `Case.option`."""
    return ("dali/gpu",) * bool(gpus()) + ("dali/cpu", "tfdata/cpu")


def table(base: Case, recipes: Iterable[RecipeName], dtypes: Iterable[DType], wanted: Sequence[str]) -> list[Case]:
    """The cases of the main table.

    Args:
        base: what they have in common.
        recipes: which recipes.
        dtypes: which dtypes.
        wanted: pipelines to keep; all if empty.
    """
    cases = [
        replace(base, pipeline=pipeline, recipe=recipe, dtype=dtype, option=option)
        for recipe in recipes
        for dtype in dtypes
        for pipeline in _TABLE[dtype]
        if not (recipe != "crop_train" and pipeline in _CROP_ONLY)
        for option in (engines() if pipeline == "ours" else ("",))
    ]
    return [case for case in cases if not wanted or case.pipeline in wanted]


def settle(cases: Sequence[Case], speed: Callable[[Case], float]) -> tuple[list[Case], list[dict[str, object]]]:
    """The cases, tf.data's in its fastest variant here; and what each variant gave.

    Args:
        cases: those with `pipeline="tuned"` have no option yet.
        speed: images a second of a case.
    """
    settled, tried = list[Case](), list[dict[str, object]]()
    for case in cases:
        if case.pipeline == "tuned" and not case.option:
            speeds = {option: speed(replace(case, option=option)) for option in TUNED_VARIANTS}
            case = replace(case, option=max(speeds, key=speeds.__getitem__))
            tried.append({"recipe": case.recipe, "dtype": case.dtype, "images_per_second": speeds})
        settled.append(case)
    return settled, tried
