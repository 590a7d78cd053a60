"""Grain, as people load image folders without TensorFlow: Python, Pillow, worker processes.

PyTorch's `DataLoader` does the same work in the same way; Grain installs without its gigabytes of CUDA libraries.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.case import Case, SkipError
from benchmarks.image_files import listing

MEAN, STD = (255 * np.array(x, np.float32) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


def make(case: Case) -> Any:
    """An endless Grain data set, in a new order each epoch: its workers would take seconds to begin each anew."""
    try:
        import grain
    except ImportError as error:
        raise SkipError(f"{error}; `uv sync --extra bench` installs it") from error
    if case.recipe != "crop_train":
        raise SkipError("written for crop_train only: neither Grain nor Pillow has a random resized crop")

    def load(entry: tuple[str, int], rng: np.random.Generator) -> tuple[NDArray[Any], np.int64]:
        path, label = entry
        with Image.open(path) as image:
            return _crop(image, case, rng), np.int64(label)

    ds = grain.MapDataset.source(listing(case)).seed(0)
    if case.shuffle:
        ds = ds.shuffle()
    ds = ds.repeat().random_map(load).batch(case.batch_size, drop_remainder=True).to_iter_dataset()
    return ds.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=case.threads))


def _crop(image: Image.Image, case: Case, rng: np.random.Generator) -> NDArray[Any]:
    left, top = (int(rng.integers(0, side - case.size + 1)) for side in image.size)
    pixels = np.asarray(image.convert("RGB").crop((left, top, left + case.size, top + case.size)))
    return pixels if case.dtype == "uint8" else (pixels - MEAN) / STD
