"""One data set for all replicas of a `tf.distribute` strategy: each reads its own stride, on its own device."""

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

# How MirroredStrategy itself makes such datasets. MultiWorkerMirroredStrategy does not offer one for each replica, and
# a thread reads ahead of the one for each worker that it does offer, so that epochs could not be counted.
from tensorflow.python.distribute import input_lib

from tf_bridge import workers
from tf_bridge.dataset import ImageDataset
from tf_bridge.shard import Shard, all_have_some, dealt

log = logging.getLogger(__name__)

_STRATEGIES = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_OPTIONS = tf.distribute.InputOptions(
    experimental_fetch_to_device=False, experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA
)

Value = TypeVar("Value", bound=np.generic)


class DistributedImages(input_lib.DistributedDatasetsFromFunction):  # by this base Keras knows it
    """Batches for the replicas of a strategy; `fit`, `evaluate`, `predict` and `for … in` take it.

    Of each global batch a replica has every `replicas`-th record, so that together they have what one device would. It
    keeps the contract of an `ImageDataset`: exact cardinality, and epochs that follow from `(seed, epoch)`.

    Made by `distribute`.

    Attributes:
        replicas: the data sets of this process's replicas.
        records: the whole view.
        recipe: what it does to each image.
        seed: of order and augmentation.
        batch_size: records a batch, of all replicas.
        engine: "dali" or "tfdata".
        device: "gpu" or "cpu".
        reason: why this engine and device, for people.
        skipped: bad records that `on_error` left out.
        repaired: bad records whose image it replaced.
    """

    def __init__(self, strategy: tf.distribute.Strategy, replicas: Sequence[ImageDataset], ranks: Sequence[int]):
        first, count = replicas[0], strategy.num_replicas_in_sync
        self.replicas, self._ranks = tuple(replicas), tuple(ranks)
        self.records, self.recipe, self.seed = first.records, first.recipe, first.seed
        self.engine, self.device, self.reason = first.engine, first.device, first.reason
        self.skipped, self.repaired = first.skipped, first.repaired
        self.batch_size: int = first.batch_size * count
        self._source = first._source
        contexts = [tf.distribute.InputContext(count, rank, count) for rank in ranks]
        made = iter(self.replicas)
        super().__init__(_workers(strategy, self.device), strategy, contexts, lambda context: next(made), _OPTIONS)

    def __len__(self) -> int:
        """Batches of an epoch, the same for every replica, with `repeat=True` too: `steps_per_epoch=len(ds)`."""
        source = self._source
        if source.drop_remainder:
            return source.left
        return -(-len(self.records) // self.batch_size) - source.start

    def cardinality(self) -> tf.Tensor:
        """Batches an iterator gives, an int64 scalar; `tf.data.INFINITE_CARDINALITY` with `repeat=True`."""
        workers.check_asker(self._strategy)
        return tf.constant(tf.data.INFINITE_CARDINALITY if self._source.repeat else len(self), tf.int64)

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator runs, counted from 0."""
        return self.replicas[0].epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator run this epoch."""
        for replica in self.replicas:
            replica.set_epoch(epoch)

    @property
    def identity(self) -> dict[str, Any]:
        """What its batches follow from, as `ImageDataset.identity`; the same for any number of replicas."""
        return {**self.replicas[0].identity, "batch_size": self.batch_size, "shard": [0, 1]}

    def rest(self, epoch: int, step: int) -> "DistributedImages":
        """What is left of an epoch from batch `step` on, as `ImageDataset.rest`."""
        rests = [replica.rest(epoch, step) for replica in self.replicas]
        return DistributedImages(self._strategy, rests, self._ranks)

    def in_order(self, rows: NDArray[Value]) -> NDArray[Value]:
        """What `predict` gave for each record, in the order of the data set.

        Keras puts the replicas' rows together batch by batch: with two replicas and batches of eight, the records
        0, 2, 4, 6, 1, 3, 5, 7 and so on.

        Args:
            rows: what `predict` returned, `(n, …)`, of a whole epoch.

        Raises:
            ValueError: there are not as many rows as the epoch has records.
        """
        count = len(self.records) if not self._source.drop_remainder else len(self) * self.batch_size
        if len(rows) != count:
            raise ValueError(f"`rows` must be of the whole epoch, {count} records. Received: {len(rows)} rows")
        ordered = np.empty_like(rows)
        ordered[dealt(count, self.replicas[0].batch_size, self._rows_by_rank())] = rows
        return ordered

    def _rows_by_rank(self) -> list[int]:
        """Ranks in the order in which Keras puts their rows together: of several workers, first all first replicas."""
        count, here = self._strategy.num_replicas_in_sync, len(self.replicas)
        return [rank for replica in range(here) for rank in range(replica, count, here)]

    def __iter__(self) -> Iterator[Any]:
        """An iterator over one epoch, or over all that follow with `repeat=True`; the same epoch on every replica."""
        self.set_epoch(self.epoch)
        batches: Iterator[Any] = super().__iter__()
        return batches

    def __repr__(self) -> str:
        shape = (self.batch_size, *self.recipe.output_shape)
        return (
            f"<DistributedImages: {len(self.records)} records, {len(self)} batches of {shape} {self.recipe.dtype}, "
            f"replicas {list(self._ranks)} of {self._strategy.num_replicas_in_sync}, engine={self.engine!r}, "
            f"device={self.device!r}, seed={self.seed}>"
        )


def _workers(strategy: tf.distribute.Strategy, device: str) -> input_lib.InputWorkers:
    """Where each replica's iterator lives, and the device that it feeds."""
    devices = strategy.extended.worker_devices
    return input_lib.InputWorkers([(name if device == "gpu" else _host(name), (name,)) for name in devices])


def _host(device: str) -> str:
    """The CPU of a device's process."""
    return str(tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string())


def distribute(strategy: tf.distribute.Strategy, make: Callable[[Shard], ImageDataset]) -> DistributedImages:
    """The data set of a strategy's replicas: `make` is called for each replica that this process runs.

        train = tb.distribute(
            strategy, lambda shard: tb.from_tfds(name, split="train", recipe=recipe, batch_size=256, shard=shard)
        )

    `batch_size` is the global batch. Ranks come from the strategy; in a job of several workers each runs this same
    line. With `seed=None` one seed is drawn for all.

    Training (`drop_remainder=True`) has full global batches only. Evaluation has each record once, in batches that may
    be smaller than `batch_size`, so that no replica is left without a record in the last (see `Shard.share`).

    Args:
        strategy: a MirroredStrategy or MultiWorkerMirroredStrategy.
        make: makes the data set of one shard, with `shard=shard`; the same for every shard otherwise.

    Raises:
        TypeError: the strategy is another, or `make` makes something else.
        ValueError: the global batch cannot be dealt evenly; there are fewer records than replicas; a replica would
            train on nothing; or the data sets of the replicas, or workers, are not of the same data.
    """
    _check_strategy(strategy)
    seed = agreed(strategy, secrets.randbits(32))[0]
    shards = _shards(strategy, seed)
    replicas = [_made(make, shard) for shard in shards]
    distributed = DistributedImages(strategy, replicas, [shard[0] for shard in shards])
    _check_alike(strategy, distributed)
    _check_none_idle(distributed)
    if distributed.seed == seed:
        log.info("Seed: %d (pass seed=%d to have the same epochs again).", seed, seed)
    return distributed


def _check_strategy(strategy: tf.distribute.Strategy) -> None:
    if not isinstance(strategy, _STRATEGIES):
        raise TypeError(
            "`strategy` must be a MirroredStrategy or MultiWorkerMirroredStrategy; one device needs no "
            f"`distribute`. Received: {type(strategy).__name__}"
        )


def _shards(strategy: tf.distribute.Strategy, seed: int) -> list[Shard]:
    """Of the replicas in this process."""
    ranks = list[int]()

    def note(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
        ranks.append(context.replica_id_in_sync_group)
        return tf.constant(0)

    strategy.experimental_distribute_values_from_function(note)
    devices = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    gpus = [device.device_index if device.device_type == "GPU" else 0 for device in devices]
    count = strategy.num_replicas_in_sync
    return [Shard(rank, count, seed=seed, gpu=gpu) for rank, gpu in zip(ranks, gpus, strict=True)]


def _made(make: Callable[[Shard], ImageDataset], shard: Shard) -> ImageDataset:
    dataset = make(shard)
    if not isinstance(dataset, ImageDataset):
        raise TypeError(f"`make` must return an ImageDataset, not what `map` makes of one. Received: {dataset!r}")
    plan = dataset._source.plan
    if (plan.rank, plan.replicas) != shard:
        raise ValueError(
            "`make` must make the data set of the shard that it is given: from_tfds(..., shard=shard). "
            f"Received: shard={(plan.rank, plan.replicas)} for {tuple(shard)}"
        )
    return dataset


def _check_alike(strategy: tf.distribute.Strategy, distributed: DistributedImages) -> None:
    """Strides of different orders would overlap, and nothing would tell."""
    first = distributed.identity
    for replica in distributed.replicas[1:]:
        batch_size = replica.batch_size * strategy.num_replicas_in_sync
        other = {**replica.identity, "batch_size": batch_size, "shard": first["shard"]}
        for name in first:
            if (first[name], distributed.device) != (other[name], replica.device):
                raise ValueError(
                    f"`make` must make the same data set for every shard. Received: {name}={first[name]} on the "
                    f"{distributed.device}, and {name}={other[name]} on the {replica.device} for another shard"
                )
    digest = hashlib.sha256(json.dumps(first).encode()).digest()
    digests = agreed(strategy, int.from_bytes(digest[:7], "big"))
    if len(set(digests)) > 1:
        raise ValueError(
            "All workers must make the same data set: the same files, seed, recipe and batch size. "
            f"Received: workers that differ; this one has {first}"
        )


def _check_none_idle(distributed: DistributedImages) -> None:
    """A training step without a record on some replica makes NaN of the BatchNorm weights, silently."""
    source, count = distributed._source, len(distributed.records)
    replicas = distributed._strategy.num_replicas_in_sync
    training = bool(source.plan.shuffle) or distributed.recipe.random
    if training and not source.drop_remainder and not all_have_some(count, source.batch_size, replicas):
        raise ValueError(
            "Every replica must have a record in each training step. Received: drop_remainder=False, and a last batch "
            f"of {count % distributed.batch_size} records for {replicas} replicas. Use drop_remainder=True, or a "
            "larger batch_size."
        )


def agreed(strategy: tf.distribute.Strategy, value: int) -> list[int]:
    """Every worker's value, in the order of the workers' ranks; only in a job of several they talk about it."""
    if not workers.several(strategy):
        return [value]
    values = strategy.experimental_distribute_values_from_function(lambda context: tf.constant([value], tf.int64))
    return [int(v) for v in strategy.gather(values, axis=0)]
