"""The pipelines that are compared: one module each, with `make(case)` and a docstring that says what it is.

`make` returns an iterable that gives batches `(images, labels)`, an epoch each time it is iterated, or raises
`SkipError`. Those that are not ours are written out in full: they are also the documentation of what one moves away
from. All draw the same augmentation for a recipe (`steps.py`), each in its own way.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from benchmarks.case import Case

# In the order of the tables.
PIPELINES = {
    "record_input": "RecordInput, then tf.data: whole images decoded in a parallel map",
    "question": "TFDS as_supervised, batch(1) -> crop -> unbatch -> batch -> rescale and z-score",
    "keras_directory": "keras.utils.image_dataset_from_directory on the images as files, resized, cropped",
    "grain_loader": "Grain on the images as files, decoded by Pillow in worker processes",
    "tuned": "tf.data as its performance guide says: region decode, uint8, parallel reads, map and batch",
    "ours": "tf_bridge.from_records",
    "limit_decode": "libjpeg-turbo alone: the same regions, from memory, on all cores",
    "limit_copy": "memcpy of the batches on one core",
}

# Of `tuned`: who sets the parallelism, and whether it has a thread pool of its own.
TUNED_VARIANTS = ("autotune", "autotune+pool", "fixed", "fixed+pool")


def make(case: Case) -> Iterable[Any]:
    """The case's data set.

    Raises:
        SkipError: it cannot run here; says why.
    """
    module: Callable[[Case], Iterable[Any]] = import_module(f"benchmarks.pipelines.{case.pipeline}").make
    return module(case)
