"""Which record made a batch fail."""

from collections.abc import Callable

import numpy as np

from dali_pipe import reader
from dali_pipe.records import Records
from dali_pipe.tfrecord import RecordError
from tf_bridge import decoders

_DECODERS: dict[str, tuple[str, Callable[[bytes], str | None]]] = {
    "dali": ("DALI", decoders.dali_fault),
    "tfdata": ("TensorFlow", decoders.tensorflow_fault),
}


def find(records: Records, places: np.ndarray, engine: str) -> RecordError | None:
    """The first record, of those at these places, that the engine cannot read or decode; None if it can all.

    Slow, one image at a time: for batches that have failed already.
    """
    name, fault = _DECODERS[engine]
    for place in places.tolist():
        row = records.table[place]
        path = records.shards[row["shard"]]
        try:
            (image,) = reader.read_images(records, np.array([place]))
        except RecordError as error:
            return error
        if reason := fault(bytes(image)):
            return RecordError(
                path,
                int(row["offset"]),
                f"{name} cannot decode the image (record {row['id']} of its split): {reason.rstrip('.')}. "
                f'Leave it out with on_error="skip", or records.exclude([{row["id"]}]).',
            )
    return None
