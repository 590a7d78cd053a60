"""An epoch as a stream of batches: what both engines read, and how epochs are numbered."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipe import reader
from dali_pipe.geometry import Ints
from dali_pipe.plan import KEEP, Plan
from dali_pipe.records import Records


class EpochCounter:
    """The number of the epoch that the next iterator runs.

    Keras makes two iterators an epoch and uses one, so that counting iterators would give epochs 0, 2, 4. An epoch
    counts once its second batch is handed out (or its end is reached): the spare iterator then has the number of the
    next epoch, and a peek at one batch uses nothing up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def begun(self, epoch: int) -> None:
        """Epoch `epoch` is under way; an iterator from before a `set_epoch` has no say."""
        with self._lock:
            if self.value == epoch:
                self.value = epoch + 1


class FixedEpoch(EpochCounter):
    """Every iterator runs this epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.value = epoch

    def begun(self, epoch: int) -> None:
        """Changes nothing."""


@dataclass(frozen=True, eq=False)
class Source:
    """The batches of each epoch.

    Attributes:
        plan: order and tickets.
        batch_size: records a batch.
        drop_remainder: leave out the last, partial batch.
        repeat: one endless stream of epochs instead of one epoch an iterator.
        counter: numbers the epochs.
        start: the batch that an iterator begins with; batches are numbered as in the whole epoch all the same.
    """

    plan: Plan
    batch_size: int
    drop_remainder: bool
    repeat: bool
    counter: EpochCounter
    start: int = 0

    epoch: Callable[[int], tuple[Ints, Ints]] = field(init=False, repr=False)  # order and tickets of an epoch

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch", lru_cache(maxsize=2)(self._epoch))  # the running one and the next

    @property
    def steps(self) -> int:
        """Batches in an epoch; as many on every replica where only full ones count."""
        if self.drop_remainder:
            return len(self.plan.records) // self.plan.replicas // self.batch_size
        return -(-len(self.plan) // self.batch_size)

    @property
    def left(self) -> int:
        """Batches that an iterator gives of an epoch: those from `start` on."""
        return self.steps - self.start

    @property
    def identity(self) -> dict[str, Any]:
        """What its batches follow from, as JSON can hold it: two runs with the same have the same batches."""
        plan = self.plan
        return {
            "seed": int(plan.seed),
            "batch_size": self.batch_size,
            "shuffle": plan.shuffle,
            "drop_remainder": self.drop_remainder,
            "shard": [plan.rank, plan.replicas],
            "recipe": repr(plan.recipe),
            "records": f"{len(plan.records)} records, {_digest(plan.records)}",
        }

    def rest(self, epoch: int, step: int) -> "Source":
        """What is left of an epoch from a batch on; no epoch follows it."""
        return replace(self, counter=FixedEpoch(epoch), start=step)

    @cached_property
    def undersized(self) -> frozenset[int]:
        """Places of the recipe's crops that meet an image smaller than themselves."""
        recipe = self.plan.recipe
        return recipe.undersized(self.plan.records.sizes(recipe.exif))

    @property
    def lanes(self) -> int:
        """Columns of a ticket."""
        return self.plan.lanes

    def order(self, epoch: int) -> Ints:
        """Places in the view that the epoch delivers, in order."""
        order = self.plan.order(epoch)
        return order[: self.steps * self.batch_size]

    def _epoch(self, epoch: int) -> tuple[Ints, Ints]:
        order = self.order(epoch)
        return order, self.tickets(epoch, order)

    def tickets(self, epoch: int, order: Ints) -> Ints:
        """Tickets `(n, lanes)` of an epoch whose records come in `order`."""
        return self.plan.tickets(epoch, order, self.batch_size)

    def pad(self, tickets: Ints) -> Ints:
        """An epoch's tickets as `(steps, batch_size, lanes)`; rows that only fill the last batch have KEEP at 0."""
        padding = np.repeat(tickets[-1:], -len(tickets) % self.batch_size, axis=0)
        padding[:, KEEP] = 0
        return np.concatenate([tickets, padding]).reshape(-1, self.batch_size, self.lanes)

    def batch(self, epoch: int, step: int) -> tuple[Ints, Ints]:
        """Places and tickets of one batch."""
        order, tickets = self.epoch(int(epoch))
        rows = slice(int(step) * self.batch_size, (int(step) + 1) * self.batch_size)
        return order[rows], tickets[rows]

    def encoded(self, epoch: int, step: int) -> tuple[NDArray[np.object_], Ints, Ints]:
        """Encoded images `(b,)`, tickets `(b, lanes)`, `(height, width, orientation, format)` `(b, 4)` of one batch."""
        places, tickets = self.batch(epoch, step)
        table = self.plan.records.table[places]
        headers = np.column_stack([table[name] for name in ("height", "width", "orientation", "format")])
        images = np.empty(len(places), object)
        images[:] = [bytes(image) for image in reader.read_images(self.plan.records, places)]
        return images, tickets, headers.astype(np.int64)


def _digest(records: Records) -> str:
    """A hash of which records these are, in what order, where in their shards, and with which labels."""
    columns = [records.table[name] for name in ("id", "shard", "offset", "length")]
    return hashlib.sha256(np.stack([*columns, records.labels]).astype("<i8").tobytes()).hexdigest()[:32]
