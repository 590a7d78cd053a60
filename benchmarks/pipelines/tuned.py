"""tf.data as https://www.tensorflow.org/guide/data_performance says, and as fast as it goes.

Shards are read in parallel and records shuffled while they are small; only the crop's region is decoded, with the fast
inverse transform that is TensorFlow's default; images stay uint8 until there is a batch; nothing waits for its turn
where order does not matter. The variants set parallelism by hand or leave it to AUTOTUNE, on TensorFlow's thread pool
or on one of its own. A run tries them all and goes on with the fastest. By hand, autotuning is off altogether: the
thread that tunes can hold up the end of an epoch for seconds.
"""

from typing import Any

import tensorflow as tf

from benchmarks.case import Case
from benchmarks.pipelines import TUNED_VARIANTS, steps


def make(case: Case) -> Any:
    """A data set; `case.option` is one of `TUNED_VARIANTS`."""
    parallelism, _, pool = (case.option or TUNED_VARIANTS[0]).partition("+")
    autotune = parallelism == "autotune"
    calls = tf.data.AUTOTUNE if autotune else case.threads

    def load(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = steps.parse(record, case)
        window = steps.random_window(tf.io.extract_jpeg_shape(encoded), case)
        image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
        if case.recipe == "imagenet_train":
            image = steps.flip_resized(image, case)
        return tf.ensure_shape(image, (case.size, case.size, 3)), label

    ds = tf.data.Dataset.from_tensor_slices(case.files)
    if case.shuffle:
        ds = ds.shuffle(len(case.files))
    ds = ds.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=calls)
    if case.shuffle:
        ds = ds.shuffle(steps.SHUFFLE_BUFFER)
    ds = ds.map(load, num_parallel_calls=calls).batch(case.batch_size, drop_remainder=True)
    if case.dtype == "float32":
        ds = ds.map(steps.normalize, num_parallel_calls=calls)
    options = tf.data.Options()
    options.deterministic = not case.shuffle
    options.autotune.enabled = autotune
    if pool:
        options.threading.private_threadpool_size = case.threads
    return ds.prefetch(tf.data.AUTOTUNE if autotune else 2).with_options(options)
