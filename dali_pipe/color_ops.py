"""Ops on colours. As in `ops.py`, the docstring is the definition.

All compute in float32, round once at their end, halves up, and clip to 0-255.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipe.geometry import Floats, Ints
from dali_pipe.ops import Op, between, bits, check_bounds

_GREY = np.tile([0.299, 0.587, 0.114], (3, 1))  # ITU-R BT.601, as libjpeg, TensorFlow and torchvision
# NTSC, to three digits so that I and Q of a grey are 0 (DALI's -0.321 and 0.311 tint greys by a level).
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


@dataclass(frozen=True)
class _Ranged(Op):
    """A random factor, uniform in `lower … upper`."""

    lower: float
    upper: float
    words: ClassVar[int] = 1
    limits: ClassVar[tuple[float, float]]

    def __post_init__(self) -> None:
        check_bounds(self, *self.limits)

    def factor(self, u: Floats) -> Floats:
        """The factors, `(n,)`."""
        return between(self, u[:, 0])


@dataclass(frozen=True)
class RandomBrightness(_Ranged):
    """Add one value to all channels: `x + round(255 · f)`, halves up, clipped to 0-255.

    Args:
        lower: smallest `f`, a fraction of the whole range; −1 to 1. `tf.image.random_brightness(d)` is (−d, d).
        upper: largest `f`.
    """

    lower: float = -0.2
    upper: float = 0.2
    lanes: ClassVar[int] = 1
    limits: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """Grey levels to add, `(n, 1)`."""
        return np.floor(255 * self.factor(u) + 0.5).astype(np.int64)[:, None], sizes


@dataclass(frozen=True)
class RandomContrast(_Ranged):
    """Stretch about each channel's mean over the image: `(x − mean) · f + mean`, rounded and clipped to 0-255.

    The mean is not rounded, and is of the image as the op meets it: after a crop, the crop's. As
    `tf.image.adjust_contrast`.

    Args:
        lower: smallest `f`; 1 leaves the image as it is.
        upper: largest `f`.
    """

    lower: float = 0.8
    upper: float = 1.2
    lanes: ClassVar[int] = 1
    limits: ClassVar[tuple[float, float]] = (0.0, 100.0)

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """The factor as float64 bits, `(n, 1)`."""
        return bits(self.factor(u)[:, None]), sizes


class ColorMatrix(Op):
    """An op that maps each pixel's (red, green, blue) by a 3x3 matrix."""

    lanes: ClassVar[int] = 9

    def matrices(self, u: Floats) -> Floats:
        """`(n, 3, 3)`."""
        raise NotImplementedError

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """The matrix, row by row, as float64 bits: `(n, 9)`."""
        return bits(np.broadcast_to(self.matrices(u), (len(sizes), 3, 3)).reshape(-1, 9)), sizes


@dataclass(frozen=True)
class RandomSaturation(_Ranged, ColorMatrix):
    """Blend with the pixel's grey `g = 0.299 R + 0.587 G + 0.114 B`: `g + (x − g) · f`, rounded and clipped to 0-255.

    `g` is not rounded. As torchvision does. (`tf.image.adjust_saturation` scales HSV's saturation, another function.)

    Args:
        lower: smallest `f`; 0 is grey, 1 leaves the image as it is.
        upper: largest `f`.
    """

    lower: float = 0.8
    upper: float = 1.2
    lanes: ClassVar[int] = 9
    limits: ClassVar[tuple[float, float]] = (0.0, 100.0)

    def matrices(self, u: Floats) -> Floats:
        """`f · identity + (1 − f) · grey`."""
        f = self.factor(u)[:, None, None]
        blend: Floats = f * np.eye(3) + (1 - f) * _GREY
        return blend


@dataclass(frozen=True)
class RandomHue(_Ranged, ColorMatrix):
    """Turn the colours about the grey axis in YIQ, by `f` of a full turn; luma `Y` stays.

    With `a = 2π · f`, `I' = I cos a − Q sin a` and `Q' = I sin a + Q cos a`, where

        Y = 0.299 R + 0.587 G + 0.114 B
        I = 0.596 R − 0.274 G − 0.322 B
        Q = 0.211 R − 0.523 G + 0.312 B

    Back to RGB by the inverse of that matrix, rounded and clipped to 0-255. (`tf.image.adjust_hue` and torchvision turn
    HSV's hue, another function, and the other way round.)

    Args:
        lower: smallest `f`, in turns; −0.5 to 0.5. Positive turns red towards blue, blue towards green.
        upper: largest `f`.
    """

    lower: float = -0.05
    upper: float = 0.05
    lanes: ClassVar[int] = 9
    limits: ClassVar[tuple[float, float]] = (-0.5, 0.5)

    def matrices(self, u: Floats) -> Floats:
        """`YIQ⁻¹ · turn · YIQ`."""
        angle = 2 * np.pi * self.factor(u)
        turn = np.broadcast_to(np.eye(3), (len(u), 3, 3)).copy()
        turn[:, 1, 1] = turn[:, 2, 2] = np.cos(angle)
        turn[:, 1, 2], turn[:, 2, 1] = -np.sin(angle), np.sin(angle)
        turned: Floats = np.linalg.inv(_YIQ) @ turn @ _YIQ
        return turned


@dataclass(frozen=True)
class Grayscale(ColorMatrix):
    """All three channels become `0.299 R + 0.587 G + 0.114 B` (ITU-R BT.601), rounded to a whole grey level."""

    def matrices(self, u: Floats) -> Floats:
        """The same for every image."""
        return _GREY
