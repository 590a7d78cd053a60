"""Reading the encoded images of a batch, wherever they lie."""

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dali_pipe.geometry import Ints
from dali_pipe.records import Records
from dali_pipe.tfrecord import RecordError


def read_images_into(records: Records, places: Ints, rows: NDArray[np.uint8]) -> None:
    """Read the image of each place to the start of its row of `(n, width)`.

    A shard is opened once a call: one that has gone or shrunk since the scan is an error here, and no descriptor is
    held between batches, however many shards there are.

    Raises:
        RecordError: the shard has changed since it was scanned.
        OSError: it cannot be opened.
    """
    table = records.table[places]
    for shard in np.unique(table["shard"]):
        path = records.shards[shard]
        with open(path, "rb", buffering=0) as file:
            records.check_stamp(int(shard), os.fstat(file.fileno()))
            for row in np.flatnonzero(table["shard"] == shard):
                length = int(table["image_length"][row])
                file.seek(int(table["image_offset"][row]))
                if file.readinto(rows[row, :length].data) != length:
                    raise RecordError(path, int(table["offset"][row]), "the shard became shorter while it was read.")


def read_images(records: Records, places: Ints) -> Iterator[memoryview]:
    """The encoded image of each place, in order."""
    lengths = records.table["image_length"][places].tolist()
    rows = np.empty((len(places), max(lengths, default=0)), np.uint8)
    read_images_into(records, places, rows)
    for row, length in zip(rows, lengths, strict=True):
        yield row[:length].data
