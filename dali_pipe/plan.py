"""One epoch, decided beforehand: in what order the records come and what each random op draws for them.

Everything follows from `(seed, epoch, recipe, records)` and is keyed by a record's id, so it is the same on every
engine, for any number of threads, any batch size and any number of replicas; leaving a record out changes nobody
else's draws. Only `Philox.random_raw` is used: numpy guarantees its stream, and does not guarantee that of
`Generator.random` or `permutation`.
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dali_pipe.geometry import Floats, Ints
from dali_pipe.recipe import Recipe
from dali_pipe.records import Records

Shuffle = bool | Literal["exact"]

MAX_SEGMENTS = 65_536  # files DALI's reader opens for an epoch; beyond, building the pipeline takes seconds
_ORDER_STREAM = 0  # recipes draw from stream 1 on
_MIX_STREAM = 1 << 32  # of a batch, keyed by its place in the epoch
_WORDS_PER_STEP = 4  # Philox-4x64 makes four words from one counter value
_CHUNK = 16_384  # ids whose words are made at once: bounds the memory

# The lanes of a ticket, the int64 row that travels beside each record; the recipe's parameters follow.
KEEP, LABEL, FIRST_PARAMETER = 0, 1, 2


def words(seed: int, epoch: int, stream: int, ids: Ints, width: int) -> NDArray[np.uint64]:
    """Random words `(n, width)`; a row depends on `(seed, epoch, stream)` and its id alone."""
    steps = -(-width // _WORDS_PER_STEP)
    out = np.empty((len(ids), width), np.uint64)
    by_id = np.argsort(ids, kind="stable")
    edges = np.flatnonzero(np.diff(ids[by_id] // _CHUNK, prepend=-1, append=-1))
    for start, end in pairwise(edges):
        rows = by_id[start:end]
        first, last = int(ids[rows[0]]), int(ids[rows[-1]])
        generator = np.random.Philox(key=[seed, epoch], counter=[first * steps, 0, 0, stream])
        raw = generator.random_raw((last - first + 1) * steps * _WORDS_PER_STEP)
        out[rows] = raw.reshape(-1, steps * _WORDS_PER_STEP)[ids[rows] - first, :width]
    return out


def uniform(seed: int, epoch: int, stream: int, ids: Ints, width: int) -> Floats:
    """Multiples of 2⁻²⁴ in [0, 1), `(n, width)`."""
    return (words(seed, epoch, stream, ids, width) >> np.uint64(40)).astype(np.float64) * 2.0**-24


@dataclass(frozen=True, eq=False)
class Plan:
    """How the epochs of a data set run.

    Attributes:
        records: the view.
        recipe: what is drawn for.
        seed: 0 to 2⁶⁴ − 1.
        shuffle: False is the view's order. True is an exact permutation up to 65,536 records and a permutation of
            blocks of neighbouring records beyond. "exact" is a permutation at any size.
        rank: which stride of the epoch's order this is.
        replicas: how many strides there are.
    """

    records: Records
    recipe: Recipe
    seed: int = 0
    shuffle: Shuffle = True
    rank: int = 0
    replicas: int = 1
    max_segments: int = field(default=MAX_SEGMENTS, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int | np.integer) or not 0 <= self.seed < 2**64:
            raise ValueError(f"`seed` must be an int from 0 to 2**64 - 1. Received: seed={self.seed!r}")
        if self.shuffle not in (True, False, "exact"):
            raise ValueError(f'`shuffle` must be True, False or "exact". Received: shuffle={self.shuffle!r}')
        if not 0 <= self.rank < self.replicas:
            raise ValueError(
                "`shard` must be (rank, replicas) with 0 <= rank < replicas. "
                f"Received: shard={(self.rank, self.replicas)}"
            )

    @cached_property
    def segments(self) -> list[Ints] | None:
        """What is permuted, as places in the view: runs of neighbours in one shard; None where it is single records."""
        longest = -(-len(self.records) // self.max_segments)
        if self.shuffle is not True or longest <= 1:
            return None
        shard = self.records.table["shard"]
        runs = np.split(np.arange(len(shard)), np.flatnonzero(np.diff(shard)) + 1)
        return [run[at : at + longest] for run in runs for at in range(0, len(run), longest)]

    def order(self, epoch: int) -> Ints:
        """Places in the view, in the order of the epoch, of this stride."""
        return self._whole_order(epoch)[self.rank :: self.replicas]

    def _whole_order(self, epoch: int) -> Ints:
        if not self.shuffle:
            return np.arange(len(self.records))
        if self.segments is None:
            return np.argsort(self._order_keys(epoch, self.records.ids), kind="stable")
        firsts = self.records.ids[[segment[0] for segment in self.segments]]
        turn = np.argsort(self._order_keys(epoch, firsts), kind="stable")
        return np.concatenate([self.segments[place] for place in turn])

    def _order_keys(self, epoch: int, ids: Ints) -> NDArray[np.uint64]:
        return words(self.seed, epoch, _ORDER_STREAM, ids, 1)[:, 0]

    def tickets(self, epoch: int, places: Ints, batch_size: int = 1) -> Ints:
        """The tickets `(n, lanes)` of the records at these places: keep (1), label, the recipe's parameters.

        With a `mix` these depend on the batches too: `places` must be a whole epoch's order.
        """
        recipe, view = self.recipe, self.records.select(places)
        parameters = recipe.parameters(
            view.sizes(recipe.exif), lambda stream, width: uniform(self.seed, epoch, stream, view.ids, width)
        )
        columns = [np.ones(len(view), np.int64), view.labels, parameters]
        if recipe.mix is not None:
            batches = np.arange(-(-len(view) // batch_size))
            u = uniform(self.seed, epoch, _MIX_STREAM, batches, recipe.mix.words)
            columns.append(recipe.mix.parameters(len(view), batch_size, recipe.output_shape[:2], u))
        return np.column_stack(columns)

    @property
    def lanes(self) -> int:
        """Columns of a ticket."""
        return FIRST_PARAMETER + self.recipe.lanes + (self.recipe.mix.lanes if self.recipe.mix else 0)

    def __len__(self) -> int:
        """Records in an epoch of this stride."""
        return len(range(self.rank, len(self.records), self.replicas))


def blocks(plan: Plan, batch_size: int) -> str | None:
    """What to tell a user whose order is one of blocks, or None."""
    if plan.segments is None:
        return None
    count, longest = len(plan.segments), max(map(len, plan.segments))
    mixed = min(batch_size, round(batch_size * plan.replicas * count / len(plan.records)) or 1)
    return (
        f"shuffle=True permutes {count:,} blocks of at most {longest} neighbouring records: a batch of {batch_size} "
        f'mixes about {mixed} of them. shuffle="exact" permutes single records.'
    )


def mixing(plan: Plan, batch_size: int) -> str | None:
    """What to tell a user whose blocks are too coarse for class-sorted data, or None.

    Compares the distinct classes in a batch, over a few batches of epoch 0, with those in a permutation's.
    """
    if plan.segments is None:
        return None
    labels = plan.records.labels
    batches = range(0, min(len(labels), 20 * batch_size), batch_size)

    def distinct(order: Ints) -> float:
        return float(np.mean([len(np.unique(labels[order[at : at + batch_size]])) for at in batches]))

    order = plan._whole_order(0)
    ours, best = distinct(order), distinct(np.argsort(plan._order_keys(0, plan.records.ids), kind="stable"))
    if ours >= 0.9 * best:
        return None
    return (
        f"shuffle=True permutes blocks of {len(plan.segments[0])} neighbouring records, and neighbours have "
        f"like labels: a batch of {batch_size} holds about {ours:.0f} classes, where a permutation's holds {best:.0f}. "
        'Use shuffle="exact".'
    )
