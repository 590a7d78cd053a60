"""One sentence on what to change when a model waits for its input."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from dali_pipe.device import available_cores
from tf_bridge import choice
from tf_bridge.dataset import ImageDataset

if TYPE_CHECKING:
    from tf_bridge.input_monitor import EpochInput

NEGLIGIBLE = 0.05  # share of the time; less is not worth a sentence
_FEW = 10  # steps of an epoch whose beginning weighs more than all that follows
_SATURATED = 0.85  # of the cores: then more threads do not help


class Advice(NamedTuple):
    """What to change.

    Attributes:
        kind: which advice it is, whatever the figures in the sentence.
        sentence: for people; "" where there is nothing to change.
    """

    kind: str
    sentence: str


def advice(found: "EpochInput", dataset: Any, accelerated: bool) -> Advice:
    """What to change, in one sentence; nothing where the wait is small.

    Args:
        found: an epoch.
        dataset: the training data; settings can only be named of an `ImageDataset`.
        accelerated: whether TensorFlow has a GPU.
    """
    if math.isnan(found.input_wait):
        return Advice("unknown", "Input: the wait for it is only measured with steps_per_execution=1, on one device.")
    if found.input_wait < NEGLIGIBLE:
        return Advice("", "")
    busy = min(1.0, found.cpu_cores / available_cores())
    kind, remedy = _ours(dataset, accelerated, busy) if isinstance(dataset, ImageDataset) else _others(busy)
    return Advice(kind, f"Input: the model waits for it {found.input_wait:.0%} of the time; {remedy}.")


def _ours(dataset: ImageDataset, accelerated: bool, busy: float) -> tuple[str, str]:
    """The first of what would help, by how much it is worth."""
    best, cores = choice.choose("auto", "auto", dataset.recipe), available_cores()
    if accelerated and dataset.device == "cpu":
        how = 'device="gpu"' if best.device == "gpu" else "DALI has to see it too, as `dali-tf doctor` shows"
        return "device", f"let the GPU decode: {how}"
    if dataset.recipe.dtype != "uint8":
        return "dtype", 'make the recipe with dtype="uint8" and normalise in the model, with tb.Preprocess(recipe)'
    if dataset.engine != best.engine:
        return "engine", f'use engine="{best.engine}", which is the faster one here for this recipe'
    if dataset.device == "cpu" and dataset.num_threads < cores:
        return "threads", f"let it have all {cores} cores: num_threads={cores}, not {dataset.num_threads}"
    if busy >= _SATURATED:
        return "cores", "all cores are busy, so it takes more of them, a GPU that decodes, or smaller stored images"
    if len(dataset) < _FEW:
        return "start", f"with {len(dataset)} steps an epoch most of that is for the first batch, so make epochs longer"
    # Not `prefetch`: the data set fetches ahead by itself.
    idle = f"the cores are {1 - busy:.0%} idle, so it waits for storage, or for Python"
    return "storage", f"{idle}: put the records on a faster disk or in memory, and take larger batches: fewer calls"


def _others(busy: float) -> tuple[str, str]:
    if busy >= _SATURATED:
        return "cheaper", "all cores are busy, so make it cheaper: tb.from_tfds with a uint8 recipe, for one"
    return "ahead", "the cores are not busy, so let it run ahead: `num_parallel_calls` in `map`, `prefetch` at the end"
