"""The steps a recipe is made of. Each op's docstring is its definition: every engine implements that formula.

Libraries' namesakes are different functions: `fn.contrast` and `tf.image.adjust_contrast` are 14 grey levels apart,
their saturations 86, their hues 99. So nothing here is "whatever the engine calls it".

Images are uint8 between ops: an op computes in float32 and rounds, halves up, to whole grey levels in 0-255.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from dali_pipe import geometry
from dali_pipe.geometry import Floats, Ints

Size = tuple[int | None, int | None]  # height, width; None where it differs from image to image

# ImageNet's channel statistics, red first, as torchvision and Keras's "torch" mode give them, in units of 0-255.
IMAGENET_MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
IMAGENET_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)


def _pair(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """`size` or `(height, width)` as two positive ints."""
    pair = tuple(size) if isinstance(size, Iterable) else (size, size)
    if len(pair) != 2 or not all(isinstance(s, int | np.integer) and 0 < s <= 65535 for s in pair):
        raise ValueError(f"`{name}` must be a positive int or (height, width). Received: {name}={size!r}")
    return int(pair[0]), int(pair[1])


def _range(name: str, bounds: Sequence[float], low: float, high: float) -> tuple[float, float]:
    pair = tuple(float(b) for b in bounds) if isinstance(bounds, Iterable) else ()
    if len(pair) != 2 or not low < pair[0] <= pair[1] <= high:
        raise ValueError(
            f"`{name}` must be (low, high) with {low} < low <= high <= {high}. Received: {name}={bounds!r}"
        )
    return pair[0], pair[1]


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer)


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be in [0, 1]. Received: {name}={value!r}")


def _grey(name: str, value: int) -> None:
    if not (_is_int(value) and 0 <= value <= 255):
        raise ValueError(f"`{name}` must be an int from 0 to 255. Received: {name}={value!r}")


class Ranged(Protocol):
    """An op with a random factor, uniform in `lower … upper`."""

    @property
    def lower(self) -> float: ...  # noqa: D102

    @property
    def upper(self) -> float: ...  # noqa: D102


def check_bounds(op: Ranged, low: float, high: float) -> None:
    """Refuse an empty range, or one beyond what the op can do."""
    if not low <= op.lower <= op.upper <= high:
        raise ValueError(
            f"`lower` and `upper` must be {low} <= lower <= upper <= {high}. "
            f"Received: lower={op.lower!r}, upper={op.upper!r}"
        )


def between(op: Ranged, u: Floats) -> Floats:
    """The factor for draws in [0, 1)."""
    return op.lower + u * (op.upper - op.lower)


def bits(values: Floats) -> Ints:
    """Floats in a ticket's int64 lanes."""
    return np.ascontiguousarray(values, np.float64).view(np.int64)


@dataclass(frozen=True)
class Op:
    """One step of a recipe.

    Attributes:
        words: uniform numbers it draws for an image.
        lanes: int64 parameters it hands to the engines for an image.
    """

    words: ClassVar[int] = 0
    lanes: ClassVar[int] = 0

    def output(self, size: Size) -> Size:
        """The size after this op, where it is the same for all images."""
        return size

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """Parameters `(n, lanes)` and new sizes `(n, 2)`, from sizes `(n, 2)` and draws `(n, words)` in [0, 1)."""
        return np.empty((len(sizes), 0), np.int64), sizes


@dataclass(frozen=True)
class Sized(Op):
    """An op whose result has the same size for every image."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("size", self.size))

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        assert isinstance(self.size, tuple)
        return self.size

    def output(self, size: Size) -> Size:
        """Always `size`."""
        return self.shape

    def ends(self, sizes: Ints) -> Ints:
        """The size of each result, `(n, 2)`."""
        return np.broadcast_to(np.array(self.shape, np.int64), sizes.shape)


@dataclass(frozen=True)
class Crop(Sized):
    """Parameters: the window `(y, x, height, width)`; it differs from `size` only where the image is smaller."""

    lanes: ClassVar[int] = 4

    def window(self, sizes: Ints, u: Floats) -> Ints:
        """`(n, 4)` windows."""
        raise NotImplementedError

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """The windows, and the size they all end with."""
        return self.window(sizes, u), self.ends(sizes)


@dataclass(frozen=True)
class RandomCrop(Crop):
    """A crop at a uniform position: `y = floor(u · (height − size + 1))`, `x` likewise.

    An image smaller than the crop on either side gives its largest centred window of the crop's aspect, of height
    `min(height, floor(width · crop height / crop width))` and of width likewise, at `floor((height − its height) / 2)`,
    which is resized to the crop as `Resize` does it, without antialias. So does `keras.layers.CenterCrop`
    (`keras.layers.RandomCrop` stretches such images.)

    Args:
        size: pixels of the square's side, or `(height, width)`.
    """

    words: ClassVar[int] = 2

    def window(self, sizes: Ints, u: Floats) -> Ints:
        """`(n, 4)` windows."""
        return geometry.random_window(sizes[:, 0], sizes[:, 1], *self.shape, u)


@dataclass(frozen=True)
class CenterCrop(Crop):
    """The centred crop, `y = floor((height − size) / 2)`, `x` likewise; smaller images as for `RandomCrop`.

    Args:
        size: pixels of the square's side, or `(height, width)`.
    """

    def window(self, sizes: Ints, u: Floats) -> Ints:
        """`(n, 4)` windows."""
        return geometry.center_window(sizes[:, 0], sizes[:, 1], *self.shape)


@dataclass(frozen=True)
class RandomResizedCrop(Crop):
    """A window of random area and aspect, resized to `size` as `Resize` does it, and rounded to whole grey levels.

    Follows `torchvision.transforms.RandomResizedCrop`: ten tries of an area `a` (uniform in `scale`, a fraction of the
    image's) and an aspect `r` (width / height, uniform in the logarithm over `ratio`), for a window of
    `round(√(a / r))` rows and `round(√(a · r))` columns, halves up. The first that the image holds is cut at a uniform
    position, as by `RandomCrop`; if none, the largest centred window whose aspect lies in `ratio`.

    Args:
        size: pixels of the result's side, or `(height, width)`.
        scale: smallest and largest fraction of the image's area.
        ratio: smallest and largest width / height.
        antialias: as for `Resize`.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    antialias: bool = False
    words: ClassVar[int] = geometry.RESIZED_CROP_WORDS

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale", _range("scale", self.scale, 0.0, 1.0))
        object.__setattr__(self, "ratio", _range("ratio", self.ratio, 0.0, 100.0))

    def window(self, sizes: Ints, u: Floats) -> Ints:
        """`(n, 4)` windows."""
        return geometry.resized_crop_window(sizes[:, 0], sizes[:, 1], self.scale, self.ratio, u)


@dataclass(frozen=True)
class Resize(Sized):
    """Resize to a fixed size, not keeping the aspect.

    The centre of row `i` is at `(i + 0.5) · height before / height after − 0.5` among the centres of the rows before,
    columns likewise. The value is linear between the neighbouring centres, and the edge's beyond the last; it is
    rounded to a whole grey level once, after both directions.

    Args:
        size: pixels of the square's side, or `(height, width)`.
        antialias: where it shrinks, a mean weighted by a triangle that reaches `before / after` pixels to either side,
            instead of one pixel. Off by default, as in `tf.image.resize` and `keras.layers.Resizing`.
    """

    antialias: bool = False

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """No parameters."""
        return np.empty((len(sizes), 0), np.int64), self.ends(sizes)


@dataclass(frozen=True)
class ResizeShorter(Op):
    """Resize so that the shorter side has `size` pixels, the longer `floor(size · longer / shorter)`.

    Linear, and rounded to whole grey levels, as `Resize` does it.

    Args:
        size: pixels of the shorter side after the resize.
        antialias: as for `Resize`.
    """

    size: int
    antialias: bool = False
    lanes: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not isinstance(self.size, int | np.integer) or not 0 < self.size <= 65535:
            raise ValueError(f"`size` must be a positive int. Received: size={self.size!r}")

    def output(self, size: Size) -> Size:
        """Unknown unless all images have one size."""
        height, width = size
        if height is None or width is None:
            return None, None
        h, w = geometry.shorter_side(height, width, self.size)
        return int(h), int(w)

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """The new `(height, width)`, `(n, 2)`."""
        new = geometry.shorter_side(sizes[:, 0], sizes[:, 1], self.size)
        return new, new


@dataclass(frozen=True)
class RandomFlip(Op):
    """Mirror left to right, and top to bottom, each with its probability (`u < probability`).

    Args:
        horizontal: probability of being mirrored left to right, 0 to 1.
        vertical: probability of being mirrored top to bottom, 0 to 1.
        joint: draw one `u` for both, as `keras.layers.RandomFlip()`: of equal probabilities, a turn by 180 degrees or
            nothing. Off by default: one for each.
    """

    horizontal: float = 0.5
    vertical: float = 0.0
    joint: bool = False
    words: ClassVar[int] = 2
    lanes: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _probability("horizontal", self.horizontal)
        _probability("vertical", self.vertical)

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """1 where mirrored left to right, 1 where mirrored top to bottom, `(n, 2)`."""
        u = u[:, :1] if self.joint else u
        return (u < [self.horizontal, self.vertical]).astype(np.int64), sizes


@dataclass(frozen=True)
class Pad(Op):
    """Add a border of one grey level; the pixels inside stay as they are.

    Args:
        size: pixels on every side; or `(vertical, horizontal)`; or `((top, bottom), (left, right))`, as
            `keras.layers.ZeroPadding2D` takes it.
        fill: the border's grey level, 0-255.
    """

    size: int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]
    fill: int = 0
    lanes: ClassVar[int] = 2

    def __post_init__(self) -> None:
        sides = self.size if isinstance(self.size, Iterable) else (self.size, self.size)
        pairs = tuple(tuple(side) if isinstance(side, Iterable) else (side, side) for side in sides)
        if len(pairs) != 2 or not all(len(p) == 2 and all(_is_int(s) and 0 <= s <= 65535 for s in p) for p in pairs):
            raise ValueError(
                "`size` must be pixels, (vertical, horizontal) or ((top, bottom), (left, right)). "
                f"Received: size={self.size!r}"
            )
        object.__setattr__(self, "size", pairs)
        _grey("fill", self.fill)

    @property
    def borders(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """`((top, bottom), (left, right))` in pixels."""
        return self.size  # type: ignore[return-value]  # made so in __post_init__

    def output(self, size: Size) -> Size:
        """Larger by the borders."""
        height, width = (None if s is None else s + sum(b) for s, b in zip(size, self.borders, strict=True))
        return height, width

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """The new `(height, width)`, `(n, 2)`."""
        new = sizes + np.array([sum(border) for border in self.borders])
        return new, new


@dataclass(frozen=True)
class RandomRotation(Op):
    """Turn about the centre by a uniform angle, keeping the size.

    A pixel whose centre is `(x, y)` from the image's centre (y downwards) takes the value at
    `(x cos a − y sin a, x sin a + y cos a)`, linear between pixel centres and rounded to a whole grey level. All pixels
    outside the image are `fill`, so that its outermost pixels blend into it.

    Args:
        lower: smallest angle in degrees; positive is counter-clockwise, as in Keras and torchvision.
        upper: largest angle in degrees.
        fill: grey level of what comes from outside, 0-255.
    """

    lower: float = -10.0
    upper: float = 10.0
    fill: int = 0
    words: ClassVar[int] = 1
    lanes: ClassVar[int] = 6

    def __post_init__(self) -> None:
        check_bounds(self, -360.0, 360.0)
        _grey("fill", self.fill)

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """The affine map from output to input pixel centres, row by row, as float64 bits: `(n, 6)`."""
        angles = np.deg2rad(between(self, u[:, 0]))
        return bits(geometry.rotation(sizes[:, 0], sizes[:, 1], angles).reshape(-1, 6)), sizes


@dataclass(frozen=True)
class RandomErasing(Op):
    """Paint a random rectangle with one grey level.

    Follows `torchvision.transforms.RandomErasing`: ten tries of an area `a` (uniform in `scale`, a fraction of the
    image's) and an aspect `r` (height / width, uniform in the logarithm over `ratio`), for a rectangle of
    `round(√(a · r))` rows and `round(√(a / r))` columns, halves up. The first that is smaller than the image on both
    sides is painted at a uniform position (`y = floor(u · (height − its height + 1))`), and none if none is.

    Args:
        probability: of being tried, 0 to 1.
        scale: smallest and largest fraction of the area.
        ratio: smallest and largest height / width.
        fill: grey level of the rectangle, 0-255.
    """

    probability: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    fill: int = 0
    words: ClassVar[int] = 1 + geometry.RESIZED_CROP_WORDS
    lanes: ClassVar[int] = 4

    def __post_init__(self) -> None:
        _probability("probability", self.probability)
        object.__setattr__(self, "scale", _range("scale", self.scale, 0.0, 1.0))
        object.__setattr__(self, "ratio", _range("ratio", self.ratio, 0.0, 100.0))
        _grey("fill", self.fill)

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """The rectangle `(y, x, height, width)`, of height and width 0 where there is none, `(n, 4)`."""
        window = geometry.erased_window(sizes[:, 0], sizes[:, 1], self.scale, self.ratio, u[:, 1:])
        return np.where(u[:, :1] < self.probability, window, 0), sizes


@dataclass(frozen=True)
class Normalize(Op):
    """Subtract the mean, divide by the deviation: `(x − mean) · (1 / std)`, each step in float32; nothing is clipped.

    Args:
        mean: of each channel, red first, in units of 0-255.
        std: of each channel, red first, in units of 0-255; positive.
    """

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            values = tuple(float(v) for v in given) if isinstance(given, Iterable) else ()
            if len(values) != 3 or not np.all(np.isfinite(values)):
                raise ValueError(
                    f"`{name}` must be three finite numbers, red first, in units of 0-255. Received: {name}={given!r}"
                )
            object.__setattr__(self, name, values)
        if min(self.std) <= 0:
            raise ValueError(f"`std` must be positive. Received: std={self.std!r}")
