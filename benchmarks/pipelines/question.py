"""The pipeline that is asked about: images of many sizes cropped one at a time, as batches of one.

`keras.layers.RandomCrop`, which it had, no longer runs in a map over images of different sizes (Keras 3.15);
`tf.image` does the same here.
"""

from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from benchmarks.case import Case, SkipError
from benchmarks.pipelines import steps

MEAN, STD = tf.constant([0.485, 0.456, 0.406]), tf.constant([0.229, 0.224, 0.225])


def make(case: Case) -> Any:
    """A data set of float32 batches."""
    steps.need_float(case, "it normalises on the host")
    if not case.is_tfds:
        raise SkipError("reads TFDS data sets only")

    def crop(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return steps.augment(images[0], case)[None], labels

    def normalize(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return (tf.cast(images, tf.float32) / 255 - MEAN) / STD, labels

    builder = tfds.builder_from_directory(case.data)
    ds = builder.as_dataset(split=case.split, as_supervised=True, shuffle_files=case.shuffle)
    if case.shuffle:
        ds = ds.shuffle(steps.SHUFFLE_BUFFER)
    ds = ds.batch(1).map(crop, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    ds = ds.batch(case.batch_size, drop_remainder=True)
    return ds.map(normalize, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
