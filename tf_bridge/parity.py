"""One epoch through every engine, image by image against plain tf.data, the recipe's ops added one at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipe.plan import Plan
from dali_pipe.recipe import Recipe
from dali_pipe.records import Records
from tf_bridge import choice
from tf_bridge.cli_data import batches
from tf_bridge.dataset import ImageDataset, from_records
from tf_bridge.parity_layers import Layer, bound, layers

_LABELS_ALIKE = 1e-6  # float labels are blends, each engine's own sum


class Engine(NamedTuple):
    """Who does the work, and where."""

    name: Literal["dali", "tfdata"]
    device: Literal["gpu", "cpu"]

    def __str__(self) -> str:
        return f"{'tf.data' if self.name == 'tfdata' else 'dali'} on {self.device}"


REFERENCE = Engine("tfdata", "cpu")


@dataclass(frozen=True, eq=False)
class Pair:
    """One image as two engines give it.

    Attributes:
        id: the record's ordinal in its split.
        label: the reference's, a number.
        reference: tf.data's image.
        image: the engine's.
        largest: largest difference of a value.
        mean: mean difference.
    """

    id: int
    label: int
    reference: NDArray[Any]
    image: NDArray[Any]
    largest: float
    mean: float


@dataclass(frozen=True)
class Row:
    """How far one engine is from the reference after one layer.

    Attributes:
        layer: the ops, for people.
        engine: whose images these are.
        images: how many were compared.
        largest: largest difference of a value, in the layer's units: grey levels, or the recipe's floats.
        mean: mean difference of a value.
        differing: share of the values that differ at all, 0 to 1.
        labels_equal: whether every label is the reference's (to 1e-6 where labels are floats).
        bound: what `largest` may be.
        recipe: what was done.
        worst: the images that differ most, worst first.
    """

    layer: str
    engine: Engine
    images: int
    largest: float
    mean: float
    differing: float
    labels_equal: bool
    bound: float
    recipe: Recipe = field(repr=False)
    worst: tuple[Pair, ...] = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Within the bound, labels equal."""
        return self.labels_equal and self.largest <= self.bound


def engines() -> list[Engine]:
    """The engines there are here beside the reference.

    Raises:
        ImportError: there is none: DALI cannot be loaded.
    """
    if fault := choice.dali_fault():
        raise ImportError(f"There is no engine to hold against tf.data: DALI cannot be loaded ({fault})")
    on_gpu = [Engine("dali", "gpu")] if choice.dali_device().kind == "gpu" else []
    return [Engine("dali", "cpu"), *on_gpu]


def compare(
    records: Records,
    recipe: Recipe,
    *,
    seed: int = 0,
    epoch: int = 0,
    batch_size: int = 64,
    num_threads: int | None = None,
    keep: int = 3,
    against: Sequence[Engine] | None = None,
    tick: Callable[[int], object] = lambda count: None,
) -> list[Row]:
    """Run a shuffled epoch through every engine, for each layer of the recipe.

    Args:
        records: what to read, all of it.
        recipe: what to do.
        seed: of order and augmentation.
        epoch: which epoch of that seed.
        batch_size: records a batch; the last batch is partial.
        num_threads: CPU threads of an engine; None is one for each core.
        keep: the worst images that each row keeps.
        against: the engines to hold against tf.data; None is all there are.
        tick: called with so many images as were compared meanwhile; each is, once a layer.

    Raises:
        ImportError: there is no engine to compare.
        RuntimeError: an engine stopped at an image.
    """
    chosen = engines() if against is None else list(against)
    rows = []
    for layer in layers(recipe):
        datasets = [
            from_records(
                records,
                recipe=layer.recipe,
                batch_size=max(1, min(batch_size, len(records))),
                shuffle=True,
                seed=seed,
                drop_remainder=False,
                engine=engine.name,
                device=engine.device,
                num_threads=num_threads,
            )
            for engine in (REFERENCE, *chosen)
        ]
        tallies = [_Tally(keep) for _ in chosen]
        _run(datasets, epoch, tallies, tick)
        sizes = records.sizes(recipe.exif)
        rows += [
            tally.row(layer, engine, bound(layer.recipe, sizes, nvjpeg=engine.device == "gpu"))
            for tally, engine in zip(tallies, chosen, strict=True)
        ]
    return rows


def _run(
    datasets: Sequence[ImageDataset], epoch: int, tallies: "Sequence[_Tally]", tick: Callable[[int], object]
) -> None:
    """Let the first dataset's epoch and the others' run side by side, a tally for each of the others."""
    reference = datasets[0]
    ids = iter(reference.records.ids[Plan(reference.records, reference.recipe, reference.seed).order(epoch)])
    for dataset in datasets:
        dataset.set_epoch(epoch)
    for right, *others in zip(*map(batches, datasets), strict=True):
        of_batch = [int(next(ids)) for _ in right[1]]
        for tally, other in zip(tallies, others, strict=True):
            tally.add(of_batch, right, other)
        tick(len(of_batch))


Batch = tuple[NDArray[Any], NDArray[Any]]


class _Tally:
    """The differences of one engine, batch by batch: an epoch need not fit the memory."""

    def __init__(self, keep: int):
        self._keep, self._worst = keep, list[Pair]()
        self._images, self._values, self._differing = 0, 0, 0
        self._largest, self._sum = 0.0, 0.0
        self._labels_equal = True

    def add(self, ids: Sequence[int], reference: Batch, other: Batch) -> None:
        difference = np.abs(reference[0].astype(np.float32) - other[0].astype(np.float32))
        difference = np.nan_to_num(difference, nan=np.inf, posinf=np.inf).reshape(len(ids), -1)
        largest, mean = difference.max(1), difference.mean(1, dtype=np.float64)
        self._images += len(ids)
        self._values += difference.size
        self._differing += int(np.count_nonzero(difference))
        self._sum += float(difference.sum(dtype=np.float64))
        self._largest = max(self._largest, float(largest.max()))
        self._labels_equal &= bool(np.allclose(reference[1], other[1], rtol=0, atol=_LABELS_ALIKE))
        classes = reference[1] if reference[1].ndim == 1 else reference[1].argmax(1)
        pairs = [
            Pair(n, int(c), a, b, float(top), float(m))
            for n, c, a, b, top, m in zip(ids, classes, reference[0], other[0], largest, mean, strict=True)
        ]
        self._worst = sorted([*self._worst, *pairs], key=lambda pair: (-pair.largest, -pair.mean))[: self._keep]

    def row(self, layer: Layer, engine: Engine, allowed: float) -> Row:
        return Row(
            layer=layer.name,
            engine=engine,
            images=self._images,
            largest=self._largest,
            mean=self._sum / self._values,
            differing=self._differing / self._values,
            labels_equal=self._labels_equal,
            bound=allowed,
            recipe=layer.recipe,
            worst=tuple(self._worst),
        )
