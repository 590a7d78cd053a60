"""A recipe in plain tf.data: the reference in parity tests, and the engine where there is no DALI.

Without a GPU `auto` takes it for what DALI is slow at on the CPU, too: resizes and colours (`choice.py`).
"""

import itertools
import queue
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from dali_pipe import batch_ops, color_ops, image_header, ops
from dali_pipe.ops import Op
from dali_pipe.plan import FIRST_PARAMETER, LABEL
from dali_pipe.recipe import Recipe
from tf_bridge.python_calls import graph, guarded
from tf_bridge.source import Source

_JPEG = image_header.FORMATS.index("jpeg")
_DCT = {"accurate": "INTEGER_ACCURATE", "fast": "INTEGER_FAST"}
# Chroma is upsampled from neighbours, so pixels at the edge of a decoded region differ from the whole image's.
_MARGIN = 8


class Encoded(NamedTuple):
    """One record before decoding: bytes, ticket `(lanes,)`, `(height, width, orientation, format)` from the scan."""

    image: tf.Tensor
    ticket: tf.Tensor
    header: tf.Tensor


class Step(NamedTuple):
    """One op where it stands in a recipe: its parameters, whether some image is smaller than this crop."""

    op: Op
    parameters: tf.Tensor
    undersized: bool

    def floats(self) -> tf.Tensor:
        """Parameters that are float64 bits, as float32."""
        return floats(self.parameters)


def floats(lanes: tf.Tensor) -> tf.Tensor:
    """float64 bits in int64 lanes, as float32."""
    return tf.cast(tf.bitcast(lanes, tf.float64), tf.float32)


def decode(encoded: Encoded, recipe: Recipe) -> tf.Tensor:
    """The whole image, uint8 `(height, width, 3)`; any format TensorFlow reads."""
    image = tf.cond(
        encoded.header[3] == _JPEG,
        lambda: tf.io.decode_jpeg(encoded.image, channels=3, dct_method=_DCT[recipe.dct]),
        lambda: tf.io.decode_image(encoded.image, channels=3, expand_animations=False),
    )
    image.set_shape([None, None, 3])
    return _upright(image, encoded.header[2]) if recipe.exif else image


# What turns an image upright, by EXIF orientation from 1 on. (A slice with step -1 takes sixty times as long.)
_TURNS: tuple[Callable[[tf.Tensor], tf.Tensor], ...] = (
    lambda x: x,
    lambda x: tf.reverse(x, (1,)),
    lambda x: tf.reverse(x, (0, 1)),
    lambda x: tf.reverse(x, (0,)),
    lambda x: tf.transpose(x, (1, 0, 2)),
    lambda x: tf.transpose(tf.reverse(x, (0,)), (1, 0, 2)),
    lambda x: tf.transpose(tf.reverse(x, (0, 1)), (1, 0, 2)),
    lambda x: tf.transpose(tf.reverse(x, (1,)), (1, 0, 2)),
)


def _upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    branches = [lambda turn=turn: turn(image) for turn in _TURNS]
    turned = tf.switch_case(tf.cast(orientation - 1, tf.int32), branches)
    turned.set_shape([None, None, 3])
    return turned


def decode_window(encoded: Encoded, window: tf.Tensor, recipe: Recipe) -> tf.Tensor:
    """Only the window `(y, x, height, width)`; equal to a slice of the whole image, bit for bit."""
    y, x, height, width = tf.unstack(window)

    def region() -> tf.Tensor:
        top, left = tf.maximum(y - _MARGIN, 0), tf.maximum(x - _MARGIN, 0)
        bottom = tf.minimum(y + height + _MARGIN, encoded.header[0])
        right = tf.minimum(x + width + _MARGIN, encoded.header[1])
        wider = tf.io.decode_and_crop_jpeg(
            encoded.image,
            tf.cast(tf.stack([top, left, bottom - top, right - left]), tf.int32),
            channels=3,
            dct_method=_DCT[recipe.dct],
        )
        return wider[y - top : y - top + height, x - left : x - left + width]

    as_stored = encoded.header[3] == _JPEG
    if recipe.exif:  # a turned image's window is somewhere else in the file
        as_stored &= encoded.header[2] == 1
    image = tf.cond(as_stored, region, lambda: decode(encoded, recipe)[y : y + height, x : x + width])
    image.set_shape([None, None, 3])
    return image


def _crop(image: tf.Tensor, step: Step) -> tf.Tensor:
    y, x, height, width = tf.unstack(step.parameters)
    return _resize_window(image[y : y + height, x : x + width], step)


def _resize_window(image: tf.Tensor, step: Step) -> tf.Tensor:
    """What follows a crop's window: nothing, unless it has another size than the crop."""
    op = step.op
    assert isinstance(op, ops.Crop)
    if isinstance(op, ops.RandomResizedCrop):
        return _linear(image, op.shape, op.antialias)
    if step.undersized:
        fits = tf.reduce_all(tf.shape(image)[:2] == op.shape)
        image = tf.cond(fits, lambda: image, lambda: _linear(image, op.shape, False))
    return tf.ensure_shape(image, [*op.shape, 3])


def _resize(image: tf.Tensor, step: Step) -> tf.Tensor:
    assert isinstance(step.op, ops.Resize)
    return _linear(image, step.op.shape, step.op.antialias)


def _resize_shorter(image: tf.Tensor, step: Step) -> tf.Tensor:
    assert isinstance(step.op, ops.ResizeShorter)
    return _linear(image, tf.cast(step.parameters, tf.int32), step.op.antialias)


def _linear(image: tf.Tensor, size: tf.Tensor | tuple[int, int], antialias: bool) -> tf.Tensor:
    # Weighted means of grey levels stay in 0-255, so rounding is one addition and the cast's truncation.
    return tf.cast(tf.image.resize(image, size, "bilinear", antialias=antialias) + 0.5, tf.uint8)


def _grey_levels(x: tf.Tensor) -> tf.Tensor:
    """Floats rounded, halves up, and clipped to uint8."""
    return tf.cast(tf.clip_by_value(tf.floor(x + 0.5), 0.0, 255.0), tf.uint8)


def _flip(image: tf.Tensor, step: Step) -> tf.Tensor:
    assert isinstance(step.op, ops.RandomFlip)
    if step.op.horizontal:
        image = tf.cond(step.parameters[0] != 0, lambda: tf.reverse(image, (1,)), lambda: image)
    if step.op.vertical:
        mirrored = image
        image = tf.cond(step.parameters[1] != 0, lambda: tf.reverse(mirrored, (0,)), lambda: mirrored)
    return image


def _pad(image: tf.Tensor, step: Step) -> tf.Tensor:
    assert isinstance(step.op, ops.Pad)
    return tf.pad(image, [*step.op.borders, (0, 0)], constant_values=step.op.fill)


def _rotate(image: tf.Tensor, step: Step) -> tf.Tensor:
    assert isinstance(step.op, ops.RandomRotation)
    matrix = tf.reshape(tf.bitcast(step.parameters, tf.float64), (2, 3))
    # The op counts from the first pixel's centre, the matrix from its corner.
    offset = tf.linalg.matvec(matrix[:, :2], tf.constant([0.5, 0.5], tf.float64)) + matrix[:, 2] - 0.5
    transform = tf.concat([tf.reshape(tf.concat([matrix[:, :2], offset[:, None]], 1), [6]), [0.0, 0.0]], 0)
    turned = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(image, tf.float32)[None],
        transforms=tf.cast(transform, tf.float32)[None],
        output_shape=tf.shape(image)[:2],
        fill_value=float(step.op.fill),
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]
    return tf.ensure_shape(_grey_levels(turned), image.shape)


def _erase(image: tf.Tensor, step: Step) -> tf.Tensor:
    assert isinstance(step.op, ops.RandomErasing)
    return tf.where(_inside(step.parameters, tf.shape(image)), tf.constant(step.op.fill, tf.uint8), image)


def _inside(window: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """True in the window `(y, x, height, width)`, `(height, width, 1)`."""
    y, x, height, width = tf.unstack(tf.cast(window, tf.int32))
    rows, columns = tf.range(shape[0])[:, None, None], tf.range(shape[1])[None, :, None]
    return (rows >= y) & (rows < y + height) & (columns >= x) & (columns < x + width)


def _brightness(image: tf.Tensor, step: Step) -> tf.Tensor:
    shifted = tf.cast(image, tf.int32) + tf.cast(step.parameters[0], tf.int32)
    return tf.cast(tf.clip_by_value(shifted, 0, 255), tf.uint8)


def _contrast(image: tf.Tensor, step: Step) -> tf.Tensor:
    x = tf.cast(image, tf.float32)
    mean = tf.reduce_mean(x, (0, 1), keepdims=True)
    return _grey_levels((x - mean) * step.floats() + mean)


def _color(image: tf.Tensor, step: Step) -> tf.Tensor:
    matrix = tf.reshape(step.floats(), (3, 3))
    return _grey_levels(tf.linalg.matmul(tf.cast(image, tf.float32), matrix, transpose_b=True))


_LOWERINGS: dict[type[Op], Callable[[tf.Tensor, Step], tf.Tensor]] = {
    ops.RandomCrop: _crop,
    ops.CenterCrop: _crop,
    ops.RandomResizedCrop: _crop,
    ops.Resize: _resize,
    ops.ResizeShorter: _resize_shorter,
    ops.RandomFlip: _flip,
    ops.Pad: _pad,
    ops.RandomRotation: _rotate,
    ops.RandomErasing: _erase,
    color_ops.RandomBrightness: _brightness,
    color_ops.RandomContrast: _contrast,
    color_ops.RandomSaturation: _color,
    color_ops.RandomHue: _color,
    color_ops.Grayscale: _color,
}


def one_image(encoded: Encoded, recipe: Recipe, undersized: frozenset[int] = frozenset()) -> tf.Tensor:
    """What the recipe makes of one record, uint8, short of its `Normalize`."""
    image, at = None, FIRST_PARAMETER
    for place, op in enumerate(recipe.steps):
        step = Step(op, encoded.ticket[at : at + op.lanes], place in undersized)
        at += op.lanes
        if place == 0 and isinstance(op, ops.Crop):
            image = _resize_window(decode_window(encoded, step.parameters, recipe), step)
            continue
        lowering = _LOWERINGS.get(type(op))
        if lowering is None:
            raise NotImplementedError(f"The tf.data engine does not have {type(op).__name__}")
        image = lowering(decode(encoded, recipe) if image is None else image, step)
    return tf.ensure_shape(image, recipe.output_shape)


def _mix_up(images: tf.Tensor, labels: tf.Tensor, lanes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    partner, ratio = lanes[:, 0], floats(lanes[:, 1])

    def blend(x: tf.Tensor, ratio: tf.Tensor) -> tf.Tensor:
        return ratio * x + (1.0 - ratio) * tf.gather(x, partner)

    mixed = blend(tf.cast(images, tf.float32), ratio[:, None, None, None])
    return _grey_levels(mixed), blend(labels, ratio[:, None])


def _cut_mix(images: tf.Tensor, labels: tf.Tensor, lanes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    partner, ratio = lanes[:, 0], floats(lanes[:, 5])[:, None]
    inside = _inside(lanes[0, 1:5], tf.shape(images)[1:3])  # one rectangle a batch
    pasted = tf.where(inside, tf.gather(images, partner), images)
    return pasted, ratio * labels + (1.0 - ratio) * tf.gather(labels, partner)


_MIXES: dict[type[batch_ops.Mix], Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]] = {
    batch_ops.MixUp: _mix_up,
    batch_ops.CutMix: _cut_mix,
}


def normalize(images: tf.Tensor, op: ops.Normalize) -> tf.Tensor:
    """`(x − mean) · (1 / std)` in float32, as DALI computes it."""
    # Row by row: broadcasting over three channels takes five times as long.
    width = images.shape[-2]
    mean = np.tile(np.array(op.mean, np.float32), width)
    scale = np.tile(1 / np.array(op.std, np.float32), width)
    rows = tf.reshape(tf.cast(images, tf.float32), (-1, len(mean)))
    return tf.reshape((rows - mean) * scale, tf.shape(images))


def finish(images: tf.Tensor, tickets: tf.Tensor, recipe: Recipe) -> tuple[tf.Tensor, tf.Tensor]:
    """Images and labels of a batch of uint8 images; four times fewer bytes go through the batching this way."""
    labels = tickets[:, LABEL]
    if recipe.label is not None:
        classes, on, off = recipe.label.classes, recipe.label.on, recipe.label.off
        labels = tf.one_hot(labels, classes, on_value=on, off_value=off, dtype=tf.float32)
    if recipe.mix is not None:
        images, labels = _MIXES[type(recipe.mix)](images, labels, tickets[:, FIRST_PARAMETER + recipe.lanes :])
    if recipe.dtype != "uint8" and recipe.normalize is not None:
        images = normalize(images, recipe.normalize)
    return tf.cast(images, recipe.dtype), labels


class _Line(NamedTuple):
    """An iterator over epoch after epoch, as their numbers come: to make one takes as long as decoding 200 images."""

    batches: Iterator[Any]
    numbers: queue.SimpleQueue[int | None]


class TFDataEngine:
    """Runs one source's epochs."""

    def __init__(self, source: Source, num_threads: int):
        self._source, self._threads = source, num_threads
        self._idle = list[_Line]()

    def batches(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch, in order."""
        line = self._idle.pop() if self._idle else self._line()
        line.numbers.put(epoch)
        yield from itertools.islice(line.batches, self._source.left)
        self._idle.append(line)  # one that failed, or was left in the middle of an epoch, is let go

    def _line(self) -> "_Line":
        numbers = queue.SimpleQueue[int | None]()
        asked = tf.data.Dataset.from_generator(
            lambda: iter(numbers.get, None), output_signature=tf.TensorSpec((), tf.int64)
        )
        options = tf.data.Options()
        options.threading.max_intra_op_parallelism = 1  # the images are what runs in parallel
        options.autotune.enabled = False  # its thread takes seconds to end with the iterator
        options.experimental_optimization.inject_prefetch = False  # which would ask for a number that is not there yet
        return _Line(iter(asked.flat_map(graph(self._epoch)).with_options(options)), numbers)

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """A read call a batch, images in parallel, uint8 until the batch is made."""
        source, recipe = self._source, self._source.plan.recipe

        def read(step: tf.Tensor) -> Encoded:
            image, ticket, header = tf.numpy_function(
                guarded(source.encoded), [epoch, step], (tf.string, tf.int64, tf.int64), stateful=False
            )
            image.set_shape([None])
            ticket.set_shape([None, source.lanes])
            header.set_shape([None, 4])
            return Encoded(image, ticket, header)

        def load(encoded: Encoded) -> tuple[tf.Tensor, tf.Tensor]:
            return one_image(encoded, recipe, source.undersized), encoded.ticket

        return (
            tf.data.Dataset.range(source.start, source.steps)
            .map(graph(read), num_parallel_calls=2)
            .unbatch()
            .map(graph(load), num_parallel_calls=self._threads)
            .batch(source.batch_size, drop_remainder=source.drop_remainder)
            .map(graph(lambda images, tickets: finish(images, tickets, recipe)))
            .prefetch(2)
        )
