"""`RecordInput`: shuffled records from many files at once, as TensorFlow 1's benchmarks read ImageNet.

The op yields serialized Examples for ever; there is no epoch. Every image is decoded whole, and then augmented as the
recipe says: nothing of those benchmarks' own distortions is in it.
"""

from glob import glob
from itertools import takewhile
from typing import Any

import tensorflow as tf

from benchmarks.case import Case, SkipError
from benchmarks.pipelines import steps

FILES_AT_ONCE = 16
BUFFER = 10_000  # records


def make(case: Case) -> Any:
    """An endless data set."""
    pattern = _pattern(case.files)

    def read(_: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.RecordInput(
            file_pattern=pattern,
            file_random_seed=0,
            file_parallelism=FILES_AT_ONCE,
            file_buffer_size=BUFFER,
            batch_size=case.batch_size,
        )

    def load(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = steps.parse(record, case)
        return steps.augment(tf.io.decode_jpeg(encoded, channels=3), case), label

    ds = tf.data.Dataset.range(1).repeat().map(read).unbatch()
    ds = ds.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(case.batch_size, drop_remainder=True)
    if case.dtype == "float32":
        ds = ds.map(steps.normalize, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.prefetch(tf.data.AUTOTUNE)


def _pattern(files: list[str]) -> str:
    """One glob that matches these files and no other: all that the op takes."""
    first, last = min(files), max(files)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))))
    pattern = first if len(files) == 1 else f"{first[:same]}*"
    if sorted(glob(pattern)) != sorted(files):
        raise SkipError(f"RecordInput takes one glob, and none is these files alone. Tried: {pattern}")
    return pattern
