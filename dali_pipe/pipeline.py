"""A recipe as a DALI graph. The only module of this package that needs DALI.

One graph function serves both devices. On the CPU the decoder reads only the window a leading crop asks for, which is
what makes that path fast. On the GPU `mixed` decodes the whole image (nvJPEG) and everything after runs there.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from nvidia.dali import Pipeline, fn, math, types
from nvidia.dali import tfrecord as dali_tfrecord

from dali_pipe import batch_ops, color_ops, ops, plan
from dali_pipe.ops import Op
from dali_pipe.recipe import Recipe

log = logging.getLogger(__name__)

Kind = Literal["cpu", "gpu"]
Node = Any  # nvidia.dali.data_node.DataNode, which has no stubs for its arithmetic
Feed = Callable[[], tuple[Node, Node]]  # encoded images and tickets, made inside a Pipeline's scope

_DTYPES = {"uint8": types.UINT8, "float16": types.FLOAT16, "float32": types.FLOAT}
INPUT, ENCODED = "ticket", "encoded"  # names of the external sources
_conditional: Any = fn._conditional  # type: ignore[attr-defined]  # see _where


class Lanes(NamedTuple):
    """An op's parameters inside a ticket."""

    ticket: Node
    start: int
    device: Kind

    def ints(self, first: int, count: int) -> Node:
        """`count` parameters from `first`, as int32: what DALI takes for sizes and places."""
        at = self.start + first
        return fn.cast(self.ticket[at : at + count], dtype=types.INT32)

    def flag(self, lane: int) -> Node:
        """One parameter as an int32 scalar."""
        return fn.cast(self.ticket[self.start + lane], dtype=types.INT32)

    def floats(self, first: int, count: int) -> Node:
        """`count` parameters from `first` that are float64 bits, as float32."""
        at = self.start + first
        return fn.cast(fn.reinterpret(self.ticket[at : at + count], dtype=types.FLOAT64), dtype=types.FLOAT)

    def beside_image(self, parameter: Node) -> Node:
        """A parameter where arithmetic with images needs it; as an op's argument it stays on the CPU."""
        return parameter.gpu() if self.device == "gpu" else parameter


class Step(NamedTuple):
    """One op where it stands in a recipe.

    Attributes:
        op: what to do.
        lanes: its parameters.
        undersized: whether some image is smaller than this crop.
    """

    op: Op
    lanes: Lanes
    undersized: bool


def native_feed(shards: Sequence[str], index: Sequence[str], image_key: str, padded: bool) -> Feed:
    """JPEG bytes from DALI's own TFRecord reader, tickets from the external source.

    Args:
        shards: path for each run of records; may repeat.
        index: index file of each run.
        image_key: the feature that holds the encoded image.
        padded: some tickets do not have KEEP set; those records are dropped before they are decoded, which is what
            makes a true partial batch.
    """

    def feed() -> tuple[Node, Node]:
        ticket = fn.external_source(name=INPUT, dtype=types.INT64, ndim=1)
        feature = dali_tfrecord.FixedLenFeature([], dali_tfrecord.string, "")
        read: Node = fn.readers.tfrecord(
            path=list(shards),
            index_path=list(index),
            features={image_key: feature},
            dont_use_mmap=True,  # the kernel kills a process that reads a mapped shard which was cut short
        )
        jpeg = read[image_key]
        if not padded:
            return jpeg, ticket
        keep = fn.cast(ticket[plan.KEEP], dtype=types.BOOL)
        return _where(jpeg, keep)[0], _where(ticket, keep)[0]

    return feed


def bytes_feed(lanes: int) -> Feed:
    """Both from one external source, for whoever has to make one dense array of a batch.

    Rows are uint8: length of the image and its ticket of `lanes` numbers (int64), image, filler.
    """

    def feed() -> tuple[Node, Node]:
        row: Node = fn.external_source(name=INPUT, dtype=types.UINT8, ndim=1)
        start = 8 * (lanes + 1)
        head = fn.reinterpret(row[:start], dtype=types.INT64)
        return row[start : start + head[0]], head[1:]

    return feed


def memory_feed() -> tuple[Node, Node]:
    """Encoded images and tickets from two external sources, read where whoever runs the pipeline has them in memory."""
    return (
        fn.external_source(name=ENCODED, dtype=types.UINT8, ndim=1, no_copy=True),
        fn.external_source(name=INPUT, dtype=types.INT64, ndim=1, no_copy=True),
    )


def _where(x: Node, predicate: Node) -> tuple[Node, Node]:
    """The samples where `predicate` holds, and the others.

    `_conditional` is private, but it is what `if` in a DALI graph compiles to, and the only way to drop samples. The
    DALI release is pinned.
    """
    return _conditional.split(x, predicate=predicate, _if_stmt=True)  # type: ignore[no-any-return]


def graph(feed: Feed, recipe: Recipe, device: Kind, undersized: frozenset[int] = frozenset()) -> tuple[Node, Node]:
    """Images and labels of a batch, both on `device`; call it inside a Pipeline's scope.

    Args:
        feed: gives encoded images and tickets.
        recipe: what to do.
        device: "cpu", or "gpu" for decoding and all ops on the GPU.
        undersized: places of the crops that meet images smaller than themselves (`Recipe.undersized`).
    """
    encoded, ticket = feed()
    image, label = _image(encoded, ticket, recipe, device, undersized), _label(ticket, recipe)
    if recipe.mix is not None:
        lanes = Lanes(ticket, plan.FIRST_PARAMETER + recipe.lanes, device)
        image, label = _MIXES[type(recipe.mix)](image, label, lanes)
    return _finish(image, recipe), label.gpu() if device == "gpu" else label


def _image(encoded: Node, ticket: Node, recipe: Recipe, device: Kind, undersized: frozenset[int]) -> Node:
    """The uint8 image, short of `Normalize`."""
    image, at = None, plan.FIRST_PARAMETER
    for place, op in enumerate(recipe.steps):
        step = Step(op, Lanes(ticket, at, device), place in undersized)
        at += op.lanes
        if place == 0 and device == "cpu" and isinstance(op, ops.Crop):
            image = _resize_window(_decode(encoded, recipe, device, step.lanes), step)
        else:
            image = _lower(_decode(encoded, recipe, device) if image is None else image, step)
    return image


def _label(ticket: Node, recipe: Recipe) -> Node:
    label = ticket[plan.LABEL]
    if recipe.label is None:
        return label
    return fn.one_hot(
        fn.cast(label, dtype=types.INT32),
        num_classes=recipe.label.classes,
        on_value=recipe.label.on,
        off_value=recipe.label.off,
        dtype=types.FLOAT,
    )


def _finish(image: Node, recipe: Recipe) -> Node:
    op = recipe.normalize
    if recipe.dtype == "uint8":
        return image
    if op is None:
        return fn.cast(image, dtype=_DTYPES[recipe.dtype])
    return fn.crop_mirror_normalize(
        image, output_layout="HWC", dtype=_DTYPES[recipe.dtype], mean=list(op.mean), std=list(op.std)
    )


def _decode(jpeg: Node, recipe: Recipe, device: Kind, region: Lanes | None = None) -> Node:
    settings: dict[str, Any] = {"output_type": types.RGB, "adjust_orientation": recipe.exif}
    jpeg = _parsed(jpeg, recipe, region)
    if device == "gpu":
        if recipe.dct != "accurate":
            _tell_one_transform()
        # Chroma upsampled as libjpeg does it; nvJPEG's own way differs at every coloured edge.
        return fn.decoders.image(jpeg, device="mixed", jpeg_fancy_upsampling=True, **settings)
    settings["use_fast_idct"] = recipe.dct == "fast"
    if region is None:
        return fn.decoders.image(jpeg, device="cpu", **settings)
    return fn.decoders.image_slice(
        jpeg, device="cpu", start=region.ints(0, 2), shape=region.ints(2, 2), axes=[0, 1], **settings
    )


@cache
def _tell_one_transform() -> None:
    log.warning('nvJPEG has one inverse DCT, its own: dct="fast" is for the engines on the CPU.')


def _parsed(jpeg: Node, recipe: Recipe, region: Lanes | None) -> Node:
    """The same encoded images, once DALI has read the header of each.

    The decoder of DALI 2.4 reads a batch's headers on several threads, and where one cannot be read, or a window lies
    outside its image, it goes before the other threads are done, which takes the process down. `peek_image_shape`
    fails as it should. An image that does not hold its window is dropped here, and then the decoder refuses the batch,
    which is shorter than that of the windows.
    """
    shape = fn.peek_image_shape(jpeg, adjust_orientation=recipe.exif)
    if region is None:
        return _where(jpeg, shape[0] > 0)[0]
    inside = region.ints(0, 2) + region.ints(2, 2) <= shape[:2]
    return _where(jpeg, inside[0] & inside[1])[0]


def _slice(image: Node, step: Step) -> Node:
    window = fn.slice(image, start=step.lanes.ints(0, 2), shape=step.lanes.ints(2, 2), axes=[0, 1])
    return _resize_window(window, step)


def _resize_window(image: Node, step: Step) -> Node:
    """What follows a crop's window: nothing, unless it has another size than the crop."""
    op, lanes = step.op, step.lanes
    assert isinstance(op, ops.Crop)
    if isinstance(op, ops.RandomResizedCrop):
        return _linear(image, op.shape, op.antialias)
    if not step.undersized:
        return image
    # Only the small images pass the resize, which costs more than their decoding.
    is_small = (lanes.flag(2) != op.shape[0]) | (lanes.flag(3) != op.shape[1])
    small, exact = _where(image, is_small)
    return _conditional.merge(_linear(small, op.shape, False), exact, predicate=is_small)


def _resize(image: Node, step: Step) -> Node:
    assert isinstance(step.op, ops.Resize)
    return _linear(image, step.op.shape, step.op.antialias)


def _resize_shorter(image: Node, step: Step) -> Node:
    assert isinstance(step.op, ops.ResizeShorter)
    return _linear(image, fn.cast(step.lanes.ints(0, 2), dtype=types.FLOAT), step.op.antialias)


def _linear(image: Node, size: Any, antialias: bool) -> Node:
    return fn.resize(image, size=size, interp_type=types.INTERP_LINEAR, antialias=antialias, dtype=types.UINT8)


def _flip(image: Node, step: Step) -> Node:
    assert isinstance(step.op, ops.RandomFlip)
    directions = {}
    if step.op.horizontal:
        directions["horizontal"] = step.lanes.flag(0)
    if step.op.vertical:
        directions["vertical"] = step.lanes.flag(1)
    return fn.flip(image, **{"horizontal": 0, "vertical": 0, **directions})


def _pad(image: Node, step: Step) -> Node:
    assert isinstance(step.op, ops.Pad)
    (top, _), (left, _) = step.op.borders
    return fn.slice(
        image,
        start=[-top, -left],
        shape=step.lanes.ints(0, 2),
        axes=[0, 1],
        out_of_bounds_policy="pad",
        fill_values=step.op.fill,
    )


def _rotate(image: Node, step: Step) -> Node:
    assert isinstance(step.op, ops.RandomRotation)
    return fn.warp_affine(
        image,
        matrix=fn.reshape(step.lanes.floats(0, 6), shape=[2, 3]),
        fill_value=step.op.fill,
        interp_type=types.INTERP_LINEAR,
        dtype=types.UINT8,
    )


def _erase(image: Node, step: Step) -> Node:
    assert isinstance(step.op, ops.RandomErasing)
    return _paint(image, step.lanes, 0, step.op.fill)


def _paint(image: Node, lanes: Lanes, first: int, fill: int) -> Node:
    """One grey level over the window in the four lanes from `first`; nothing where it is empty."""
    anchor, shape = (fn.cast(lanes.ints(at, 2), dtype=types.FLOAT) for at in (first, first + 2))
    return fn.erase(image, anchor=anchor, shape=shape, axes=(0, 1), fill_value=fill)


def _brightness(image: Node, step: Step) -> Node:
    return fn.cast(image + step.lanes.beside_image(step.lanes.flag(0)), dtype=types.UINT8)  # the cast clips


def _contrast(image: Node, step: Step) -> Node:
    factor = step.lanes.beside_image(step.lanes.floats(0, 1))
    mean = fn.reductions.mean(image, axes=[0, 1], keep_dims=True)
    return _grey_levels((fn.cast(image, dtype=types.FLOAT) - mean) * factor + mean)


def _color(image: Node, step: Step) -> Node:
    matrix = fn.reshape(step.lanes.floats(0, 9), shape=[3, 3])
    return _grey_levels(fn.coord_transform(image, M=matrix))


def _grey_levels(x: Node) -> Node:
    """Floats rounded, halves up, and clipped to uint8."""
    return fn.cast(math.floor(x + 0.5), dtype=types.UINT8)


_LOWERINGS: dict[type[Op], Callable[[Node, Step], Node]] = {
    ops.RandomCrop: _slice,
    ops.CenterCrop: _slice,
    ops.RandomResizedCrop: _slice,
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


def _mix_up(image: Node, label: Node, lanes: Lanes) -> tuple[Node, Node]:
    partner, ratio = lanes.flag(0), lanes.floats(1, 1)[0]

    def blend(x: Node, ratio: Node) -> Node:
        return ratio * x + (1.0 - ratio) * fn.permute_batch(x, indices=partner)

    mixed = blend(fn.cast(image, dtype=types.FLOAT), lanes.beside_image(ratio))
    return _grey_levels(mixed), blend(label, ratio)


def _cut_mix(image: Node, label: Node, lanes: Lanes) -> tuple[Node, Node]:
    partner, ratio = lanes.flag(0), lanes.floats(5, 1)[0]
    other = fn.permute_batch(image, indices=partner)
    # What is left of the image outside the rectangle, and of its partner inside: they never overlap.
    pasted = _paint(image, lanes, 1, 0) + (other - _paint(other, lanes, 1, 0))
    return fn.cast(pasted, dtype=types.UINT8), ratio * label + (1.0 - ratio) * fn.permute_batch(label, indices=partner)


_MIXES: dict[type[batch_ops.Mix], Callable[[Node, Node, Lanes], tuple[Node, Node]]] = {
    batch_ops.MixUp: _mix_up,
    batch_ops.CutMix: _cut_mix,
}


def _lower(image: Node, step: Step) -> Node:
    lowering = _LOWERINGS.get(type(step.op))
    if lowering is None:
        raise NotImplementedError(f"The DALI engine does not have {type(step.op).__name__}")
    return lowering(image, step)


def build(
    feed: Feed,
    recipe: Recipe,
    *,
    batch_size: int,
    num_threads: int,
    device: Kind = "cpu",
    device_id: int = 0,
    undersized: frozenset[int] = frozenset(),
    prefetch_queue_depth: int = 2,
) -> Pipeline:
    """A DALI pipeline that is known to build: what cannot raises here, where a DALIDataset would abort the process.

    On a GPU, `device_id` is its CUDA ordinal.

    Raises:
        RuntimeError: DALI's own message; a shard that has gone, say.
    """
    pipe = Pipeline(
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=device_id if device == "gpu" else None,
        prefetch_queue_depth=prefetch_queue_depth,
    )
    with pipe:
        pipe.set_outputs(*graph(feed, recipe, device, undersized))
    pipe.build()
    return pipe
