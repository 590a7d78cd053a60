"""Linear resizes before they are rounded, and with the filter that the engines do not share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from nvidia.dali import Pipeline, fn, types

import dali_pipe as dp
import tf_bridge as tb
from tests import reference, support
from tf_bridge import parity_layers, sample_data

Image = np.ndarray
# Of a window, and of what it becomes: shrunk, enlarged, one of each, by whole factors, to one row, from one pixel.
SIZES = [
    ((320, 427), (224, 224)),
    ((60, 80), (224, 200)),
    ((97, 31), (40, 50)),
    ((448, 448), (224, 224)),
    ((50, 50), (150, 150)),
    ((33, 47), (1, 9)),
    ((1, 1), (5, 4)),
]


def _dali(images: list[Image], sizes: list[tuple[int, int]]) -> list[Image]:
    pipe = Pipeline(batch_size=len(images), num_threads=2, device_id=None)
    with pipe:
        image = fn.external_source(name="image", layout="HWC")
        size = fn.external_source(name="size")
        pipe.set_outputs(
            fn.resize(image, size=size, interp_type=types.INTERP_LINEAR, antialias=False, dtype=types.FLOAT)
        )
    pipe.build()
    pipe.feed_input("image", images)
    pipe.feed_input("size", [np.array(size, np.float32) for size in sizes])
    (out,) = pipe.run()
    return [np.array(out.at(k)) for k in range(len(images))]


def _tensorflow(images: list[Image], sizes: list[tuple[int, int]]) -> list[Image]:
    return [tf.image.resize(image, size, "bilinear").numpy() for image, size in zip(images, sizes, strict=True)]


@pytest.mark.parametrize("resize", [_dali, _tensorflow])
def test_linear_is_the_formula_within_a_hundredth_of_a_grey_level(
    resize: Callable[[list[Image], list[tuple[int, int]]], list[Image]],
) -> None:
    images = [tf.io.decode_jpeg(support.photograph(k, *size)).numpy() for k, (size, _) in enumerate(SIZES)]
    for found, image, (_, size) in zip(resize(images, [new for _, new in SIZES]), images, SIZES, strict=True):
        assert found.dtype == np.float32
        assert np.abs(found - reference.resized(image, *size)).max() <= 0.005  # so no two are apart by 0.01


RESIZES = {
    "resized crop": (dp.RandomResizedCrop(224, antialias=True),),
    "resize": (dp.Resize((224, 200), antialias=True),),
    "shorter side": (dp.ResizeShorter(224, antialias=True), dp.CenterCrop(224)),
}


@pytest.mark.parametrize("case", RESIZES)
def test_antialiased_resizes_agree_but_at_the_edge(tmp_path: Path, case: str) -> None:
    """There DALI repeats the outermost pixels and TensorFlow leaves out what is beyond; here, on photographs."""
    photographs = [sample_data._photograph(file) for file in sample_data.PHOTOGRAPHS.values()]
    images = [sample_data._variant(p, np.random.default_rng(k)) for k, p in enumerate(photographs)]
    shards, recipe = support.write_shards(tmp_path, images), dp.Recipe(RESIZES[case], "uint8")
    apart = _apart(shards, recipe)
    assert apart[:, 1:-1, 1:-1].max() <= 1
    assert apart.max() <= 12
    assert apart.mean() <= 0.006


@pytest.mark.parametrize("shrunk", [18, 20, 24, 37, 39])
def test_antialiased_edges_are_within_the_bound(tmp_path: Path, shrunk: int) -> None:
    """The worst there is: a bright corner on black."""
    image = np.zeros((40, 40, 3), np.uint8)
    image[0, 0] = 255
    shards = support.write_shards(tmp_path, [tf.io.encode_png(image).numpy()], shards=1)
    recipe = dp.Recipe((dp.Resize(shrunk, antialias=True),), "uint8")
    apart = _apart(shards, recipe)
    assert apart[0, 0, 0].max() > 10 or shrunk > 36
    assert apart.max() <= parity_layers.grey_bound(recipe, np.array([[40, 40]]))


def _apart(shards: list[Path], recipe: dp.Recipe) -> np.ndarray:
    """Grey levels between the engines' first batches."""
    dali, tfdata = (
        next(iter(tb.from_tfrecords(shards, recipe=recipe, batch_size=10, seed=11, engine=engine)))[0].numpy()
        for engine in ("dali", "tfdata")
    )
    apart: np.ndarray = np.abs(dali.astype(int) - tfdata)
    return apart
