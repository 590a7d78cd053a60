"""What happens to an image on its way into the network: frozen, validated data, without any framework.

A `Recipe` says *what*; `pipeline.py` and the tf.data engine say *how*, from the same parameters. An op turns the sizes
of the images before it, and uniform draws, into integer parameters (`Op.parameters`): a crop's window, a flip's bit.
They are computed once, here, for all engines.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from dali_pipe import geometry
from dali_pipe.geometry import Floats, Ints

DType = Literal["uint8", "float16", "float32"]
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
class _Crop(Op):
    """Parameters: the window `(y, x, height, width)`; it differs from `size` only where the image is smaller."""

    size: int | tuple[int, int]
    lanes: ClassVar[int] = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair("size", self.size))

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        assert isinstance(self.size, tuple)
        return self.size

    def output(self, size: Size) -> Size:
        return self.shape

    def window(self, sizes: Ints, u: Floats) -> Ints:
        raise NotImplementedError

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        return self.window(sizes, u), np.broadcast_to(np.array(self.shape, np.int64), sizes.shape)


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """A crop at a uniform position: `y = floor(u · (height − size + 1))`, `x` likewise.

    An image smaller than the crop gives its largest centred window of the crop's aspect, resized to the crop (linear,
    no antialias), as `keras.layers.RandomCrop` does.

    Args:
        size: pixels of the square's side, or `(height, width)`.
    """

    words: ClassVar[int] = 2

    def window(self, sizes: Ints, u: Floats) -> Ints:
        """`(n, 4)` windows."""
        return geometry.random_window(sizes[:, 0], sizes[:, 1], *self.shape, u)


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """The centred crop, `y = floor((height − size) / 2)`; smaller images as for `RandomCrop`.

    Args:
        size: pixels of the square's side, or `(height, width)`.
    """

    def window(self, sizes: Ints, u: Floats) -> Ints:
        """`(n, 4)` windows."""
        return geometry.center_window(sizes[:, 0], sizes[:, 1], *self.shape)


@dataclass(frozen=True)
class RandomResizedCrop(_Crop):
    """A window of random area and aspect, resized to `size` (linear; rounded to whole grey levels).

    Follows `torchvision.transforms.RandomResizedCrop`: see `geometry.resized_crop_window`.

    Args:
        size: pixels of the result's side, or `(height, width)`.
        scale: smallest and largest fraction of the image's area.
        ratio: smallest and largest width / height.
        antialias: filter before shrinking. Off by default, as in `tf.image.resize`.
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
class Resize(Op):
    """Resize to a fixed size, not keeping the aspect (linear; rounded to whole grey levels).

    Args:
        size: pixels of the square's side, or `(height, width)`.
        antialias: filter before shrinking. Off by default, as in `tf.image.resize` and `keras.layers.Resizing`.
    """

    size: int | tuple[int, int]
    antialias: bool = False

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

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """No parameters."""
        return np.empty((len(sizes), 0), np.int64), np.broadcast_to(np.array(self.shape, np.int64), sizes.shape)


@dataclass(frozen=True)
class ResizeShorter(Op):
    """Resize so that the shorter side has `size` pixels, the longer `floor(size · longer / shorter)`.

    Args:
        size: pixels of the shorter side after the resize.
        antialias: filter before shrinking. Off by default.
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
    """Mirror left to right with a probability (`u < probability`).

    Args:
        probability: of being mirrored, 0 to 1.
    """

    probability: float = 0.5
    words: ClassVar[int] = 1
    lanes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"`probability` must be in [0, 1]. Received: probability={self.probability!r}")

    def parameters(self, sizes: Ints, u: Floats) -> tuple[Ints, Ints]:
        """1 where mirrored, `(n, 1)`."""
        return (u < self.probability).astype(np.int64), sizes


@dataclass(frozen=True)
class Normalize(Op):
    """Subtract the mean and divide by the deviation: `(x − mean) · (1 / std)`, in float32.

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


Draw = Callable[[int, int], Floats]  # (stream, words) -> uniform numbers (n, words) in [0, 1)


@dataclass(frozen=True)
class Recipe:
    """Ops in order, and what comes out.

    With `dtype="uint8"` a final `Normalize` is not done in the pipeline: it becomes `tail`, which
    `tf_bridge.Preprocess(recipe)` does inside the model, on the accelerator. A byte a channel crosses the host then,
    not four.

    Args:
        ops: the steps. The size after the last must be the same for every image; `Normalize` may only stand last.
        dtype: of the images handed out: "uint8", "float16" or "float32". Without `Normalize`, values stay 0-255.
        dct: the JPEG decoder's inverse transform. "accurate" is DALI's default and TensorFlow's `INTEGER_ACCURATE`,
            "fast" is TensorFlow's default; they differ by one grey level on average. Means the same on every CPU
            engine.
        exif: turn images by their EXIF orientation. Off by default, as TensorFlow leaves it.
    """

    ops: tuple[Op, ...]
    dtype: DType = "float32"
    dct: Literal["accurate", "fast"] = "accurate"
    exif: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        for op in self.ops:
            if not isinstance(op, Op):
                raise TypeError(f"`ops` must hold ops such as CenterCrop(224). Received: {op!r}")
        if self.dtype not in get_args(DType):
            raise ValueError(f"`dtype` must be one of {', '.join(get_args(DType))}. Received: dtype={self.dtype!r}")
        if self.dct not in ("accurate", "fast"):
            raise ValueError(f'`dct` must be "accurate" or "fast". Received: dct={self.dct!r}')
        if any(isinstance(op, Normalize) for op in self.ops[:-1]):
            raise ValueError(f"`Normalize` must be the last op. Received: ops={self.ops!r}")
        if None in self._size():
            raise ValueError(
                "A recipe must give every image the same size: end the geometry with a crop or a `Resize`. "
                f"Received: ops={self.ops!r}"
            )

    def _size(self) -> Size:
        size: Size = (None, None)
        for op in self.ops:
            size = op.output(size)
        return size

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """`(height, width, 3)` of every image."""
        height, width = self._size()
        assert height is not None and width is not None
        return height, width, 3

    @property
    def tail(self) -> tuple[Op, ...]:
        """What is left for the model to do: the normalisation of a uint8 recipe."""
        return tuple(op for op in self.ops if isinstance(op, Normalize)) if self.dtype == "uint8" else ()

    @property
    def body(self) -> tuple[Op, ...]:
        """What the pipeline does."""
        return self.ops[: len(self.ops) - len(self.tail)]

    @property
    def random(self) -> bool:
        """Whether any op draws: such a recipe is for training."""
        return any(op.words for op in self.ops)

    @property
    def lanes(self) -> int:
        """Parameters of one image over all ops."""
        return sum(op.lanes for op in self.ops)

    def with_dtype(self, dtype: DType) -> "Recipe":
        """The same recipe with another output type."""
        return replace(self, dtype=dtype)

    def parameters(self, sizes: Ints, draw: Draw) -> Ints:
        """Every op's parameters side by side, `(n, lanes)`, for images of `sizes` `(n, 2)`.

        `draw(stream, words)` gives an op its uniform numbers; the stream is the op's place among the random ops,
        from 1, so that an op added behind changes nobody's draws.
        """
        columns, stream = [], 0
        for op in self.ops:
            stream += bool(op.words)
            u = draw(stream, op.words) if op.words else np.empty((len(sizes), 0))
            lanes, sizes = op.parameters(sizes, u)
            columns.append(lanes)
        return np.concatenate(columns, axis=1) if columns else np.empty((len(sizes), 0), np.int64)

    def undersized(self, sizes: Ints) -> frozenset[int]:
        """Places of the plain crops that meet an image smaller than themselves: only these need a resize."""
        lanes = self.parameters(sizes, lambda _, words: np.zeros((len(sizes), words)))
        found, at = set(), 0
        for place, op in enumerate(self.ops):
            if isinstance(op, RandomCrop | CenterCrop) and (lanes[:, at + 2 : at + 4] != op.shape).any():
                found.add(place)
            at += op.lanes
        return frozenset(found)


def crop_train(size: int | tuple[int, int] = 224, dtype: DType = "float32") -> Recipe:
    """Random crop, scale to 0-1, z-score with ImageNet's statistics."""
    return Recipe((RandomCrop(size), Normalize()), dtype)


def crop_eval(size: int | tuple[int, int] = 224, dtype: DType = "float32") -> Recipe:
    """Center crop, scale to 0-1, z-score with ImageNet's statistics."""
    return Recipe((CenterCrop(size), Normalize()), dtype)


def imagenet_train(size: int | tuple[int, int] = 224, dtype: DType = "float32") -> Recipe:
    """The usual ImageNet training recipe: random resized crop, random flip, z-score."""
    return Recipe((RandomResizedCrop(size), RandomFlip(), Normalize()), dtype)


def imagenet_eval(size: int = 224, dtype: DType = "float32") -> Recipe:
    """The usual ImageNet evaluation: shorter side to 8/7 of the crop (256 for 224), center crop, z-score."""
    return Recipe((ResizeShorter(round(size * 256 / 224)), CenterCrop(size), Normalize()), dtype)
