"""One replica's part of a data set: arithmetic only."""

import numpy as np

from dali_pipe.geometry import Ints


class Shard(tuple[int, int]):
    """`(rank, replicas)`, as `tb.distribute` hands it to `make`; `from_records(..., shard=shard)` takes it whole.

    It equals the plain tuple, and brings what all replicas must have alike: with it, `batch_size` is the global batch.

    Attributes:
        seed: fresh entropy, for a data set that is made with `seed=None`.
        gpu: which of TensorFlow's logical GPUs the replica computes on; 0 where it computes on none.
    """

    seed: int
    gpu: int

    def __new__(cls, rank: int, replicas: int, *, seed: int, gpu: int = 0) -> "Shard":
        """See the class."""
        shard = super().__new__(cls, (rank, replicas))
        shard.seed, shard.gpu = seed, gpu
        return shard

    def share(self, batch_size: int, records: int, drop_remainder: bool) -> int:
        """Records that this replica, like each, takes of a global batch of `batch_size`.

        Where the last batch may be partial, it is less if need be: Keras wants the first batch even across replicas,
        and a replica that has no record at all in a training step turns BatchNorm's weights into NaN.

        Raises:
            ValueError: the batch cannot be dealt evenly, or there are fewer records than replicas, or than a batch has.
        """
        replicas = self[1]
        if batch_size % replicas:
            raise ValueError(
                "`batch_size` is the batch of all replicas and must divide by their number. "
                f"Received: batch_size={batch_size}, {replicas} replicas"
            )
        if records < replicas:
            raise ValueError(f"Each replica must have a record. Received: {records} records, {replicas} replicas")
        if drop_remainder and records < batch_size:
            raise ValueError(
                "`batch_size` must not exceed the number of records with drop_remainder=True. "
                f"Received: batch_size={batch_size}, {records} records"
            )
        if drop_remainder:
            return batch_size // replicas
        most = min(batch_size, records) // replicas
        return next((n for n in range(most, 0, -1) if all_have_some(records, n, replicas)), most)


def all_have_some(records: int, share: int, replicas: int) -> bool:
    """Whether the last, partial batch of an epoch has a record for every replica."""
    left = records % (share * replicas)
    return left == 0 or left >= replicas


def dealt(records: int, share: int, ranks: list[int]) -> Ints:
    """Places in an epoch's order as the replicas hand them out: step by step, in each step by rank.

    Args:
        records: in the epoch.
        share: records that a replica takes of a batch.
        ranks: of the replicas, in the order in which their rows are put together.
    """
    replicas = len(ranks)
    steps = -(-records // (share * replicas))
    step, rank, row = np.meshgrid(np.arange(steps), ranks, np.arange(share), indexing="ij")
    places: Ints = ((step * share + row) * replicas + rank).ravel()
    within: Ints = places[places < records]
    return within
