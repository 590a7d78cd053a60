"""A recipe as a DALI graph. The only module that imports DALI.

One graph function serves both devices. On the CPU the decoder reads only the window a leading crop asks for, which is
what makes that path fast. On the GPU `mixed` decodes the whole image (nvJPEG) and everything after runs there.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from nvidia.dali import Pipeline, fn, types
from nvidia.dali import tfrecord as dali_tfrecord

from dali_pipe import plan, recipe
from dali_pipe.recipe import Op, Recipe

Kind = Literal["cpu", "gpu"]
Node = Any  # nvidia.dali.data_node.DataNode, which has no stubs for its arithmetic
Feed = Callable[[], tuple[Node, Node]]  # encoded images and tickets, made inside a Pipeline's scope

_DTYPES = {"uint8": types.UINT8, "float16": types.FLOAT16, "float32": types.FLOAT}
INPUT = "ticket"  # name of the external source
_conditional: Any = fn._conditional  # type: ignore[attr-defined]  # see _where


class Lanes(NamedTuple):
    """An op's parameters inside a ticket."""

    ticket: Node
    start: int

    def ints(self, first: int, count: int) -> Node:
        """`count` parameters from `first`, as int32: what DALI takes for sizes and places."""
        at = self.start + first
        return fn.cast(self.ticket[at : at + count], dtype=types.INT32)

    def flag(self, lane: int) -> Node:
        """One parameter as an int32 scalar."""
        return fn.cast(self.ticket[self.start + lane], dtype=types.INT32)


class Step(NamedTuple):
    """One op where it stands in a recipe.

    Attributes:
        op: what to do.
        lanes: its parameters.
        undersized: whether some image is smaller than this crop.
        dtype: what the recipe hands out.
    """

    op: Op
    lanes: Lanes
    undersized: bool
    dtype: str


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
    """Tickets and JPEG bytes from the external source, as uint8 rows: length, ticket of `lanes`, image, padding."""

    def feed() -> tuple[Node, Node]:
        row = fn.external_source(name=INPUT, dtype=types.UINT8, ndim=1)
        head = fn.reinterpret(row[: 8 * (lanes + 1)], dtype=types.INT64)
        return row[8 * (lanes + 1) : 8 * (lanes + 1) + head[0]], head[1:]

    return feed


def _where(x: Node, predicate: Node) -> tuple[Node, Node]:
    """The samples where `predicate` holds, and the others.

    `_conditional` is private, but it is what `if` in a DALI graph compiles to, and the only way to drop samples. The
    DALI release is pinned.
    """
    return _conditional.split(x, predicate=predicate, _if_stmt=True)  # type: ignore[no-any-return]


def graph(feed: Feed, rec: Recipe, device: Kind, undersized: frozenset[int] = frozenset()) -> tuple[Node, Node]:
    """Images and labels of a batch, both on `device`; call it inside a Pipeline's scope.

    Args:
        feed: gives JPEG bytes and tickets.
        rec: the recipe.
        device: "cpu", or "gpu" for decoding and all ops on the GPU.
        undersized: places of the crops that meet images smaller than themselves (`Recipe.undersized`).
    """
    jpeg, ticket = feed()
    image, at = None, plan.FIRST_PARAMETER
    for place, op in enumerate(rec.body):
        step = Step(op, Lanes(ticket, at), place in undersized, rec.dtype)
        at += op.lanes
        if place == 0 and device == "cpu" and isinstance(op, recipe._Crop):
            image = _resize_window(_decode(jpeg, rec, device, step.lanes), step)
        else:
            image = _lower(_decode(jpeg, rec, device) if image is None else image, step)
    if not any(isinstance(op, recipe.Normalize) for op in rec.body) and rec.dtype != "uint8":
        image = fn.cast(image, dtype=_DTYPES[rec.dtype])
    label = ticket[plan.LABEL]
    return image, label.gpu() if device == "gpu" else label


def _decode(jpeg: Node, rec: Recipe, device: Kind, region: Lanes | None = None) -> Node:
    settings: dict[str, Any] = {"output_type": types.RGB, "adjust_orientation": rec.exif}
    if device == "gpu":
        # Chroma upsampled as libjpeg does it; nvJPEG's own way differs at every coloured edge.
        return fn.decoders.image(jpeg, device="mixed", jpeg_fancy_upsampling=True, **settings)
    settings["use_fast_idct"] = rec.dct == "fast"
    if region is None:
        return fn.decoders.image(jpeg, device="cpu", **settings)
    return fn.decoders.image_slice(
        jpeg, device="cpu", start=region.ints(0, 2), shape=region.ints(2, 2), axes=[0, 1], **settings
    )


def _slice(image: Node, step: Step) -> Node:
    window = fn.slice(image, start=step.lanes.ints(0, 2), shape=step.lanes.ints(2, 2), axes=[0, 1])
    return _resize_window(window, step)


def _resize_window(image: Node, step: Step) -> Node:
    """What follows a crop's window: nothing, unless it has another size than the crop."""
    op, lanes = step.op, step.lanes
    assert isinstance(op, recipe._Crop)
    if isinstance(op, recipe.RandomResizedCrop):
        return _linear(image, op.shape, op.antialias)
    if not step.undersized:
        return image
    # Only the small images pass the resize, which costs more than their decoding.
    is_small = (lanes.flag(2) != op.shape[0]) | (lanes.flag(3) != op.shape[1])
    small, exact = _where(image, is_small)
    return _conditional.merge(_linear(small, op.shape, False), exact, predicate=is_small)


def _resize(image: Node, step: Step) -> Node:
    assert isinstance(step.op, recipe.Resize)
    return _linear(image, step.op.shape, step.op.antialias)


def _resize_shorter(image: Node, step: Step) -> Node:
    assert isinstance(step.op, recipe.ResizeShorter)
    return _linear(image, fn.cast(step.lanes.ints(0, 2), dtype=types.FLOAT), step.op.antialias)


def _linear(image: Node, size: Any, antialias: bool) -> Node:
    return fn.resize(image, size=size, interp_type=types.INTERP_LINEAR, antialias=antialias, dtype=types.UINT8)


def _flip(image: Node, step: Step) -> Node:
    return fn.flip(image, horizontal=step.lanes.flag(0))


def _normalize(image: Node, step: Step) -> Node:
    op = step.op
    assert isinstance(op, recipe.Normalize)
    return fn.crop_mirror_normalize(
        image, output_layout="HWC", dtype=_DTYPES[step.dtype], mean=list(op.mean), std=list(op.std)
    )


_LOWERINGS: dict[type[Op], Callable[[Node, Step], Node]] = {
    recipe.RandomCrop: _slice,
    recipe.CenterCrop: _slice,
    recipe.RandomResizedCrop: _slice,
    recipe.Resize: _resize,
    recipe.ResizeShorter: _resize_shorter,
    recipe.RandomFlip: _flip,
    recipe.Normalize: _normalize,
}


def _lower(image: Node, step: Step) -> Node:
    lowering = _LOWERINGS.get(type(step.op))
    if lowering is None:
        raise NotImplementedError(f"The DALI engine does not have {type(step.op).__name__}")
    return lowering(image, step)


def build(
    feed: Feed,
    rec: Recipe,
    *,
    batch_size: int,
    num_threads: int,
    device: Kind = "cpu",
    undersized: frozenset[int] = frozenset(),
) -> Pipeline:
    """A DALI pipeline that is known to build: what cannot raises here, where a DALIDataset would abort the process.

    Raises:
        RuntimeError: DALI's own message; a shard that has gone, say.
    """
    pipe = Pipeline(batch_size=batch_size, num_threads=num_threads, device_id=0 if device == "gpu" else None)
    with pipe:
        pipe.set_outputs(*graph(feed, rec, device, undersized))
    pipe.build()
    return pipe
