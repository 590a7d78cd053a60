"""What happens to labels, and between the images of a batch."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipe.geometry import Floats, Ints
from dali_pipe.ops import bits


@dataclass(frozen=True)
class OneHot:
    """Labels as float32 vectors: `1 − smoothing + smoothing / classes` at the label, `smoothing / classes` elsewhere.

    Args:
        classes: length of the vectors; every label must be below it.
        smoothing: label smoothing, 0 to 1.
    """

    classes: int
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.classes, int | np.integer) or self.classes < 1:
            raise ValueError(f"`classes` must be a positive int. Received: classes={self.classes!r}")
        if not 0 <= self.smoothing <= 1:
            raise ValueError(f"`smoothing` must be in [0, 1]. Received: smoothing={self.smoothing!r}")

    @property
    def off(self) -> float:
        """Value at the other classes."""
        return self.smoothing / self.classes

    @property
    def on(self) -> float:
        """Value at the label."""
        return 1 - self.smoothing + self.off


@dataclass(frozen=True)
class Mix:
    """Mixes each image of a batch with the one before it, the first with the last, as torchvision does.

    One `λ` a batch, from Beta(alpha, alpha). Parameters of each image: its partner's place in the batch, then the op's.
    """

    alpha: float
    words: ClassVar[int]
    lanes: ClassVar[int]

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"`alpha` must be positive and finite. Received: alpha={self.alpha!r}")

    def ratio(self, u: Floats) -> Floats:
        """`λ` by inverting the Beta distribution, so that one uniform number makes one `λ` for ever."""
        from scipy.special import betaincinv

        return np.asarray(betaincinv(self.alpha, self.alpha, u), np.float64)

    def batch_parameters(self, shape: tuple[int, int], u: Floats) -> Ints:
        """Parameters `(b, lanes − 1)` for `b` batches of images of `shape`, from draws `(b, words)`."""
        raise NotImplementedError

    def parameters(self, count: int, batch_size: int, shape: tuple[int, int], u: Floats) -> Ints:
        """Parameters `(count, lanes)` of an epoch's images in order, from draws `(batches, words)`."""
        place = np.arange(count)
        first = place // batch_size * batch_size
        size = np.minimum(batch_size, count - first)
        partner = (place - first - 1) % size
        return np.column_stack([partner, self.batch_parameters(shape, u)[place // batch_size]])


@dataclass(frozen=True)
class MixUp(Mix):
    """Blend whole images and labels: `λ · x + (1 − λ) · partner` (Zhang et al., 2017).

    Images are rounded to whole grey levels, halves up; labels are float32. The partner of an image is the one before it
    in the batch, of the first the last; one `λ` a batch, from Beta(alpha, alpha), as `torchvision.transforms.v2.MixUp`
    has it. Done in the pipeline, on every engine; no Keras layer is involved.

    Args:
        alpha: of the Beta distribution.
    """

    alpha: float = 0.2
    words: ClassVar[int] = 1
    lanes: ClassVar[int] = 2

    def batch_parameters(self, shape: tuple[int, int], u: Floats) -> Ints:
        """`λ` as float64 bits."""
        return bits(self.ratio(u))


@dataclass(frozen=True)
class CutMix(Mix):
    """Paste a rectangle of the partner, and blend the labels by area (Yun et al., 2019).

    With `h = floor(√(1 − λ) / 2 · height)` the rectangle's rows go from `y − h` to `y + h`, the latter excluded, about
    `y = floor(u · height)`, and its columns likewise; it is cut at the image's edge. Labels are blended as by `MixUp`
    with the share that is left, `1 − rectangle / image`, as in `torchvision.transforms.v2.CutMix`. Partner and `λ` as
    for `MixUp`. Done in the pipeline, on every engine; no Keras layer is involved.

    Args:
        alpha: of the Beta distribution.
    """

    alpha: float = 1.0
    words: ClassVar[int] = 3
    lanes: ClassVar[int] = 6

    def batch_parameters(self, shape: tuple[int, int], u: Floats) -> Ints:
        """The rectangle `(y, x, height, width)`, then `λ` as float64 bits."""
        half = 0.5 * np.sqrt(1 - self.ratio(u[:, 0]))
        edges = []
        for side, centre in zip(shape, (u[:, 1], u[:, 2]), strict=True):
            middle, reach = np.floor(centre * side), np.floor(half * side)
            edges.append((np.maximum(middle - reach, 0), np.minimum(middle + reach, side)))
        (top, bottom), (left, right) = edges
        height, width = bottom - top, right - left
        rectangle = np.column_stack([top, left, height, width]).astype(np.int64)
        return np.column_stack([rectangle, bits(1 - height * width / (shape[0] * shape[1]))])
