"""Where an image is cut and how large it becomes: integer arithmetic on whole columns of images.

Every engine takes its windows from here, so no two can disagree by a pixel; the parity tests use these functions as
the oracle. All sizes are pixels, `height` before `width`; all arguments may be arrays of shape `(n,)`. Windows are
int64 arrays `(n, 4)` of `(y, x, height, width)`, `y` and `x` being the first row and column inside.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ATTEMPTS = 10  # torchvision.transforms.RandomResizedCrop.get_params
RESIZED_CROP_WORDS = 2 * ATTEMPTS + 2


def _windows(y: ArrayLike, x: ArrayLike, height: ArrayLike, width: ArrayLike) -> Ints:
    parts = [np.asarray(part, np.int64) for part in (y, x, height, width)]
    windows: Ints = np.stack(np.broadcast_arrays(*parts), axis=-1)
    return windows


def _round(x: NDArray[np.floating[Any]]) -> Ints:
    """Halves go up; numpy's own rounding sends them to the even neighbour."""
    rounded: Ints = np.floor(x + 0.5).astype(np.int64)
    return rounded


def position(space: ArrayLike, u: ArrayLike) -> Ints:
    """A uniform integer in `0 … space`, both ends included, from `u` in [0, 1).

    DALI's own `crop_pos` rounds instead, which gives the first and last position half a share each.
    """
    places: Ints = np.floor(np.asarray(u, np.float64) * (np.asarray(space) + 1)).astype(np.int64)
    return places


def fitting_window(height: ArrayLike, width: ArrayLike, crop_height: int, crop_width: int) -> Ints:
    """The largest centred window of the crop's aspect, as Keras's `CenterCrop` cuts smaller images."""
    height, width = np.asarray(height, np.int64), np.asarray(width, np.int64)
    h = np.maximum(1, np.minimum(height, width * crop_height // crop_width))
    w = np.maximum(1, np.minimum(width, height * crop_width // crop_height))
    return _windows((height - h) // 2, (width - w) // 2, h, w)


def _crop(height: ArrayLike, width: ArrayLike, crop_height: int, crop_width: int, y: Ints, x: Ints) -> Ints:
    """The crop at `(y, x)` where the image holds it, the fitting window where it does not."""
    small = np.asarray((np.asarray(height) < crop_height) | (np.asarray(width) < crop_width))
    return np.where(
        small[..., None],
        fitting_window(height, width, crop_height, crop_width),
        _windows(y, x, crop_height, crop_width),
    )


def center_window(height: ArrayLike, width: ArrayLike, crop_height: int, crop_width: int) -> Ints:
    """The centred crop; an odd margin leaves the extra row below and the extra column on the right, as in Keras."""
    height, width = np.asarray(height, np.int64), np.asarray(width, np.int64)
    return _crop(height, width, crop_height, crop_width, (height - crop_height) // 2, (width - crop_width) // 2)


def random_window(height: ArrayLike, width: ArrayLike, crop_height: int, crop_width: int, u: ArrayLike) -> Ints:
    """A crop at a uniform position; `u` is `(n, 2)` in [0, 1), for y and x."""
    height, width, u = np.asarray(height, np.int64), np.asarray(width, np.int64), np.asarray(u)
    y, x = position(height - crop_height, u[..., 0]), position(width - crop_width, u[..., 1])
    return _crop(height, width, crop_height, crop_width, y, x)


def resized_crop_window(
    height: ArrayLike, width: ArrayLike, scale: tuple[float, float], ratio: tuple[float, float], u: ArrayLike
) -> Ints:
    """torchvision's law for random resized crops: the first of ten tries that fits, else a centred fallback.

    Each try draws an area, uniform in `scale` (a fraction of the image's), and an aspect (width / height), uniform in
    the logarithm over `ratio`.

    Args:
        height: rows of each image, `(n,)`.
        width: columns of each image, `(n,)`.
        scale: smallest and largest fraction of the area.
        ratio: smallest and largest aspect.
        u: `(n, 22)` in [0, 1): ten areas, ten aspects, y, x.
    """
    height, width, u = np.asarray(height, np.int64), np.asarray(width, np.int64), np.asarray(u, np.float64)
    area, aspect = _tries(height, width, scale, ratio, u)
    h, w = _round(np.sqrt(area / aspect)), _round(np.sqrt(area * aspect))
    fits = (w > 0) & (h > 0) & (w <= width[..., None]) & (h <= height[..., None])
    drawn = _first(fits, height, width, h, w, u)
    return np.where(np.any(fits, axis=-1, keepdims=True), drawn, _aspect_window(height, width, ratio))


def erased_window(
    height: ArrayLike, width: ArrayLike, scale: tuple[float, float], ratio: tuple[float, float], u: ArrayLike
) -> Ints:
    """torchvision's law for random erasing: the first of ten tries that is smaller than the image, else `(0, 0, 0, 0)`.

    As `resized_crop_window`, but the aspect is height / width, and the window must be smaller on both sides.
    """
    height, width, u = np.asarray(height, np.int64), np.asarray(width, np.int64), np.asarray(u, np.float64)
    area, aspect = _tries(height, width, scale, ratio, u)
    h, w = _round(np.sqrt(area * aspect)), _round(np.sqrt(area / aspect))
    fits = (w < width[..., None]) & (h < height[..., None])
    return np.where(np.any(fits, axis=-1, keepdims=True), _first(fits, height, width, h, w, u), 0)


def _tries(
    height: Ints, width: Ints, scale: tuple[float, float], ratio: tuple[float, float], u: Floats
) -> tuple[Floats, Floats]:
    """Areas in pixels and aspects, `(n, 10)` each."""
    area = (height * width)[..., None] * (scale[0] + u[..., :ATTEMPTS] * (scale[1] - scale[0]))
    low, high = np.log(ratio[0]), np.log(ratio[1])
    return area, np.exp(low + u[..., ATTEMPTS : 2 * ATTEMPTS] * (high - low))


def _first(fits: NDArray[np.bool_], height: Ints, width: Ints, h: Ints, w: Ints, u: Floats) -> Ints:
    """The window of the first try that fits, at a uniform position; the first of all where none does."""
    first = np.argmax(fits, axis=-1)[..., None]
    h, w = np.take_along_axis(h, first, -1)[..., 0], np.take_along_axis(w, first, -1)[..., 0]
    return _windows(position(height - h, u[..., -2]), position(width - w, u[..., -1]), h, w)


def rotation(height: ArrayLike, width: ArrayLike, angle: ArrayLike) -> Floats:
    """Affine maps `(n, 2, 3)` from output to input places (x first) that turn by `angle` radians about the centre.

    Positive turns the picture counter-clockwise. A pixel's centre is half a pixel from its corner.
    """
    x, y = np.asarray(width, np.float64) / 2, np.asarray(height, np.float64) / 2
    c, s = np.cos(angle), np.sin(angle)
    rows = [np.stack([c, -s, x - c * x + s * y], -1), np.stack([s, c, y - s * x - c * y], -1)]
    return np.stack(rows, axis=-2)


def _aspect_window(height: Ints, width: Ints, ratio: tuple[float, float]) -> Ints:
    """The largest centred window whose aspect lies in `ratio`."""
    h = np.where(width < ratio[0] * height, np.minimum(height, _round(width / ratio[0])), height)
    w = np.where(width > ratio[1] * height, np.minimum(width, _round(height * ratio[1])), width)
    h, w = np.maximum(h, 1), np.maximum(w, 1)
    return _windows((height - h) // 2, (width - w) // 2, h, w)


def shorter_side(height: ArrayLike, width: ArrayLike, size: int) -> Ints:
    """Sizes `(n, 2)` with the shorter side at `size` and the longer cut to whole pixels, as torchvision resizes."""
    height, width = np.asarray(height, np.int64), np.asarray(width, np.int64)
    short = np.minimum(height, width)
    return np.stack([size * height // short, size * width // short], axis=-1)
