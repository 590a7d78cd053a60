"""What happens to an image on its way into the network: frozen, validated data, without any framework.

A `Recipe` says *what*; `pipeline.py` and the tf.data engine say *how*, from the same parameters. An op turns the sizes
of the images before it, and uniform draws, into integer parameters (`Op.parameters`): a crop's window, a flip's bit.
They are computed once, here, for all engines.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from dali_pipe.batch_ops import Mix, OneHot
from dali_pipe.geometry import Floats, Ints
from dali_pipe.ops import (
    CenterCrop,
    Normalize,
    Op,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    ResizeShorter,
    Size,
)

DType = Literal["uint8", "float16", "float32"]

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
            "fast" is TensorFlow's default; they differ by one grey level on average. Means the same on every engine on
            the CPU; nvJPEG has one of its own, whatever this says.
        exif: turn images by their EXIF orientation. Off by default, as TensorFlow leaves it.
        label: `OneHot(classes)` makes labels float32 vectors; None leaves them int64 numbers.
        mix: `MixUp()` or `CutMix()` over the batch; needs a `label`.
    """

    ops: tuple[Op, ...]
    dtype: DType = "float32"
    dct: Literal["accurate", "fast"] = "accurate"
    exif: bool = False
    label: OneHot | None = None
    mix: Mix | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        for op in self.ops:
            if not isinstance(op, Op):
                raise TypeError(f"`ops` must hold ops such as CenterCrop(224). Received: {op!r}")
        if self.dtype not in get_args(DType):
            raise ValueError(f"`dtype` must be one of {', '.join(get_args(DType))}. Received: dtype={self.dtype!r}")
        if self.dct not in ("accurate", "fast"):
            raise ValueError(f'`dct` must be "accurate" or "fast". Received: dct={self.dct!r}')
        if not isinstance(self.label, OneHot | None):
            raise TypeError(f"`label` must be OneHot(classes) or None. Received: label={self.label!r}")
        if not isinstance(self.mix, Mix | None):
            raise TypeError(f"`mix` must be MixUp(), CutMix() or None. Received: mix={self.mix!r}")
        if self.mix is not None and self.label is None:
            raise ValueError(
                f"`mix` needs labels that can be mixed: set `label=OneHot(classes)`. Received: mix={self.mix!r}"
            )
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
    def label_shape(self) -> tuple[int, ...]:
        """Of one label: `()`, or `(classes,)` with `OneHot`."""
        return () if self.label is None else (self.label.classes,)

    @property
    def label_dtype(self) -> str:
        """ "int64", or "float32" with `OneHot`."""
        return "int64" if self.label is None else "float32"

    @property
    def tail(self) -> tuple[Op, ...]:
        """What is left for the model to do: the normalisation of a uint8 recipe."""
        return (self.normalize,) if self.normalize and self.dtype == "uint8" else ()

    @property
    def normalize(self) -> Normalize | None:
        """The last op, if it is one; the model's work where it is the `tail`."""
        last = self.ops[-1]
        return last if isinstance(last, Normalize) else None

    @property
    def steps(self) -> tuple[Op, ...]:
        """The ops on uint8 images: all but `Normalize`."""
        return self.ops[:-1] if self.normalize else self.ops

    @property
    def random(self) -> bool:
        """Whether any op draws: such a recipe is for training."""
        return self.mix is not None or any(op.words for op in self.ops)

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
