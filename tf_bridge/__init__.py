"""DALI pipelines and plain tf.data as one `tf.data.Dataset` that drops into Keras's `fit`."""

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError("tf_bridge needs TensorFlow: pip install 'tensorflow>=2.20,<2.22'") from error

from tf_bridge.dataset import ImageDataset, from_records, from_tfds, from_tfrecords

__all__ = ["ImageDataset", "from_records", "from_tfds", "from_tfrecords"]
