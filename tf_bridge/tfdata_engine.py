"""A recipe in plain tf.data: the reference in parity tests, the baseline in benchmarks, the fallback without DALI."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from dali_pipe import image_header, recipe
from dali_pipe.plan import FIRST_PARAMETER, LABEL
from dali_pipe.recipe import Op, Recipe
from tf_bridge.python_calls import guarded
from tf_bridge.source import Source, graph

_JPEG = image_header.FORMATS.index("jpeg")
_DCT = {"accurate": "INTEGER_ACCURATE", "fast": "INTEGER_FAST"}
# Chroma is upsampled from neighbours, so pixels at the edge of a decoded region differ from the whole image's.
_MARGIN = 8


class Encoded(NamedTuple):
    """One record before decoding: bytes, ticket `(lanes,)`, and `(height, width, format)` from the scan."""

    image: tf.Tensor
    ticket: tf.Tensor
    header: tf.Tensor


class Step(NamedTuple):
    """One op where it stands in a recipe: its parameters, whether some image is smaller than this crop."""

    op: Op
    parameters: tf.Tensor
    undersized: bool


def decode(encoded: Encoded, rec: Recipe) -> tf.Tensor:
    """The whole image, uint8 `(height, width, 3)`; any format TensorFlow reads."""
    image = tf.cond(
        encoded.header[2] == _JPEG,
        lambda: tf.io.decode_jpeg(encoded.image, channels=3, dct_method=_DCT[rec.dct]),
        lambda: tf.io.decode_image(encoded.image, channels=3, expand_animations=False),
    )
    image.set_shape([None, None, 3])
    return image


def decode_window(encoded: Encoded, window: tf.Tensor, rec: Recipe) -> tf.Tensor:
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
            dct_method=_DCT[rec.dct],
        )
        return wider[y - top : y - top + height, x - left : x - left + width]

    image = tf.cond(
        encoded.header[2] == _JPEG,
        region,
        lambda: decode(encoded, rec)[y : y + height, x : x + width],
    )
    image.set_shape([None, None, 3])
    return image


def _crop(image: tf.Tensor, step: Step) -> tf.Tensor:
    y, x, height, width = tf.unstack(step.parameters)
    return _resize_window(image[y : y + height, x : x + width], step)


def _resize_window(image: tf.Tensor, step: Step) -> tf.Tensor:
    """What follows a crop's window: nothing, unless it has another size than the crop."""
    op = step.op
    assert isinstance(op, recipe._Crop)
    if isinstance(op, recipe.RandomResizedCrop):
        return _linear(image, op.shape, op.antialias)
    if step.undersized:
        fits = tf.reduce_all(tf.shape(image)[:2] == op.shape)
        image = tf.cond(fits, lambda: image, lambda: _linear(image, op.shape, False))
    return tf.ensure_shape(image, [*op.shape, 3])


def _resize(image: tf.Tensor, step: Step) -> tf.Tensor:
    assert isinstance(step.op, recipe.Resize)
    return _linear(image, step.op.shape, step.op.antialias)


def _resize_shorter(image: tf.Tensor, step: Step) -> tf.Tensor:
    assert isinstance(step.op, recipe.ResizeShorter)
    return _linear(image, tf.cast(step.parameters, tf.int32), step.op.antialias)


def _linear(image: tf.Tensor, size: tf.Tensor | tuple[int, int], antialias: bool) -> tf.Tensor:
    """Linear, rounded back to whole grey levels."""
    resized = tf.image.resize(image, size, "bilinear", antialias=antialias)
    return tf.cast(tf.clip_by_value(tf.floor(resized + 0.5), 0.0, 255.0), tf.uint8)


def _flip(image: tf.Tensor, step: Step) -> tf.Tensor:
    return tf.cond(step.parameters[0] != 0, lambda: image[:, ::-1], lambda: image)


_LOWERINGS: dict[type[Op], Callable[[tf.Tensor, Step], tf.Tensor]] = {
    recipe.RandomCrop: _crop,
    recipe.CenterCrop: _crop,
    recipe.RandomResizedCrop: _crop,
    recipe.Resize: _resize,
    recipe.ResizeShorter: _resize_shorter,
    recipe.RandomFlip: _flip,
}


def normalize(images: tf.Tensor, op: recipe.Normalize) -> tf.Tensor:
    """`(x − mean) · (1 / std)` in float32, as DALI computes it."""
    scale = 1.0 / tf.constant(op.std, tf.float32)
    return (tf.cast(images, tf.float32) - tf.constant(op.mean, tf.float32)) * scale


def one_image(encoded: Encoded, rec: Recipe, undersized: frozenset[int] = frozenset()) -> tf.Tensor:
    """What the recipe makes of one record, uint8, short of its `Normalize`."""
    image, at = None, FIRST_PARAMETER
    for place, op in enumerate(rec.ops):
        step = Step(op, encoded.ticket[at : at + op.lanes], place in undersized)
        at += op.lanes
        if isinstance(op, recipe.Normalize):
            continue
        if place == 0 and isinstance(op, recipe._Crop):
            image = _resize_window(decode_window(encoded, step.parameters, rec), step)
            continue
        lowering = _LOWERINGS.get(type(op))
        if lowering is None:
            raise NotImplementedError(f"The tf.data engine does not have {type(op).__name__}")
        image = lowering(decode(encoded, rec) if image is None else image, step)
    return tf.ensure_shape(image, rec.output_shape)


def finish(images: tf.Tensor, rec: Recipe) -> tf.Tensor:
    """Normalise and cast a batch of uint8 images; four times fewer bytes go through the batching this way."""
    for op in rec.body:
        if isinstance(op, recipe.Normalize):
            images = normalize(images, op)
    return tf.cast(images, rec.dtype)


def dataset(source: Source, num_threads: int) -> tf.data.Dataset:
    """A tf.data pipeline whose every iterator runs the counter's next epoch."""
    rec, records = source.plan.recipe, source.plan.records
    undersized = rec.undersized(records.sizes(rec.exif))

    def read(epoch: tf.Tensor, step: tf.Tensor) -> Encoded:
        image, ticket, header = tf.numpy_function(
            guarded(source.encoded), [epoch, step], (tf.string, tf.int64, tf.int64), stateful=False
        )
        image.set_shape([None])
        ticket.set_shape([None, source.lanes])
        header.set_shape([None, 3])
        return Encoded(image, ticket, header)

    def load(encoded: Encoded) -> tuple[tf.Tensor, tf.Tensor]:
        return one_image(encoded, rec, undersized), encoded.ticket[LABEL]

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        batches = (
            tf.data.Dataset.range(source.steps)
            .map(graph(lambda step: read(epoch, step)), num_parallel_calls=2)
            .unbatch()
            .map(graph(load), num_parallel_calls=num_threads)
            .batch(source.batch_size, drop_remainder=source.drop_remainder)
            .map(graph(lambda images, labels: (finish(images, rec), labels)))
            .prefetch(2)
        )
        return source.counted(batches, epoch)

    return source.epochs().flat_map(graph(one_epoch))
