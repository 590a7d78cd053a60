"""Keras's own way: a folder a class, a file an image, everything resized on the host.

It cannot crop at random from the images as they are: they are brought to 8/7 of the crop's size first, keeping their
aspect, as float32, and the crop is taken from the batch.
"""

from typing import Any

import keras
import tensorflow as tf

from benchmarks.case import Case, SkipError
from benchmarks.image_files import export
from benchmarks.pipelines import steps


def make(case: Case) -> Any:
    """A data set of float32 batches."""
    steps.need_float(case, "Keras resizes to floats")
    if case.recipe != "crop_train":
        raise SkipError("Keras has no random resized crop")

    def finish(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return steps.normalize(tf.image.random_crop(images, (tf.shape(images)[0], case.size, case.size, 3)), labels)

    side = round(case.size * 8 / 7)
    ds = keras.utils.image_dataset_from_directory(
        export(case),
        image_size=(side, side),
        crop_to_aspect_ratio=True,
        batch_size=case.batch_size,
        shuffle=case.shuffle,
        seed=0 if case.shuffle else None,
        verbose=False,
    )
    return ds.map(finish, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
