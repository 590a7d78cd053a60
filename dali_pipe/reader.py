"""Reading the encoded images of a batch, wherever they lie."""

import os
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from dali_pipe.geometry import Ints
from dali_pipe.records import Records
from dali_pipe.tfrecord import RecordError

Image = NDArray[np.uint8]  # encoded


def encoded_size(records: Records, places: Ints) -> int:
    """Bytes of the encoded images of these places."""
    return int(records.table["image_length"][places].sum())


def read_images(records: Records, places: Ints, memory: NDArray[np.uint8] | None = None) -> list[Image]:
    """The encoded image of each place, in order.

    A shard is opened once a call: one that has gone or shrunk since the scan is an error here, and no descriptor is
    held between batches, however many shards there are.

    Args:
        records: the view.
        places: in the view, `(n,)`.
        memory: at least `encoded_size` bytes, in which the images are put one after the other; None takes new memory.

    Raises:
        RecordError: the shard has changed since it was scanned.
        OSError: it cannot be opened.
    """
    table = records.table[places]
    if memory is None:
        memory = np.empty(encoded_size(records, places), np.uint8)
    ends = np.cumsum(table["image_length"])
    images = np.split(memory[: ends[-1]], ends[:-1]) if len(table) else []
    shards, offsets, starts = (table[name].tolist() for name in ("shard", "image_offset", "offset"))
    for shard, rows in groupby(sorted(range(len(shards)), key=shards.__getitem__), shards.__getitem__):
        path = records.shards[shard]
        with open(path, "rb", buffering=0) as file:
            records.check_stamp(shard, os.fstat(file.fileno()))
            for row in rows:
                file.seek(offsets[row])
                if file.readinto(images[row].data) != len(images[row]):
                    raise RecordError(path, starts[row], "the shard became shorter while it was read.")
    return images
