"""A recipe one op at a time, and how far engines may be apart after each."""

from typing import NamedTuple

import numpy as np

from dali_pipe import color_ops, ops
from dali_pipe.batch_ops import MixUp
from dali_pipe.geometry import Ints
from dali_pipe.ops import Op, Size
from dali_pipe.recipe import Recipe

# Ops that compute in floats: engines may round the last grey level differently. All others only move pixels.
_ROUNDING: tuple[type[Op], ...] = (
    ops.RandomResizedCrop,
    ops.Resize,
    ops.ResizeShorter,
    ops.RandomRotation,
    color_ops.RandomContrast,
    color_ops.ColorMatrix,
)
# Grey levels, of an antialiased resize: DALI repeats the outermost pixels for the part of the filter that is beyond the
# edge, TensorFlow goes without that part. It is an eighth of the filter in the outermost row and column, 15/64 in a
# corner; all other pixels are within one.
_ANTIALIASED = 255 * 15 // 64 + 1
# Grey levels between nvJPEG's images and libjpeg-turbo's: each has an inverse transform of its own. Contrast and
# colours may double what they meet. Not yet run on a GPU.
_NVJPEG = 5
_STRETCHING: tuple[type[Op], ...] = (color_ops.RandomContrast, color_ops.RandomSaturation, color_ops.RandomHue)
_FLOATS_ALIKE = 1e-6  # float32 with ImageNet's statistics; other types and statistics need more


class Layer(NamedTuple):
    """The beginning of a recipe, or all of it."""

    name: str
    recipe: Recipe


def layers(recipe: Recipe) -> list[Layer]:
    """The recipe's ops added one at a time, in uint8, then the whole recipe.

    Beginnings after which images have no common size are passed over: they cannot be batched.
    """
    size: Size = (None, None)
    found, names = list[Layer](), ["decode"]
    for place, op in enumerate(recipe.steps):
        size = op.output(size)
        names.append(type(op).__name__)
        if None not in size:
            beginning = Recipe(recipe.steps[: place + 1], "uint8", dct=recipe.dct, exif=recipe.exif)
            found.append(Layer(" + ".join(names).strip(), beginning))
            names = [""]  # the next layer's name begins with the plus
    return [*found, Layer(f"whole recipe, {recipe.dtype}", recipe)]


def grey_bound(recipe: Recipe, sizes: Ints, nvjpeg: bool = False) -> int:
    """Grey levels by which engines may differ before `Normalize`, on images of `sizes`.

    Args:
        recipe: what is done.
        sizes: heights and widths, `(n, 2)`.
        nvjpeg: whether one of them decodes on the GPU.
    """
    resized = recipe.undersized(sizes)  # a crop that meets a smaller image resizes it
    levels = [
        _ANTIALIASED if getattr(op, "antialias", False) else isinstance(op, _ROUNDING) or place in resized
        for place, op in enumerate(recipe.steps)
    ]
    decoded = _NVJPEG << sum(isinstance(op, _STRETCHING) for op in recipe.steps) if nvjpeg else 0
    return sum(levels) + isinstance(recipe.mix, MixUp) + decoded


def bound(recipe: Recipe, sizes: Ints, nvjpeg: bool = False) -> float:
    """What the largest difference may be, in the units of the recipe's images; arguments as of `grey_bound`."""
    levels = grey_bound(recipe, sizes, nvjpeg)
    if recipe.dtype == "uint8":
        return levels
    op = recipe.normalize or ops.Normalize((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    highest = max(max(abs(m), abs(255 - m)) / s for m, s in zip(op.mean, op.std, strict=True))
    return levels / min(op.std) + max(_FLOATS_ALIKE, float(np.finfo(recipe.dtype).eps) * highest)
