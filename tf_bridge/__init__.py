"""DALI pipelines and plain tf.data as one `tf.data.Dataset` that drops into Keras's `fit`.

Importing this checks that TensorFlow and DALI's plugin are installed, and loads neither; using a name does.
"""

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_bridge.callbacks import EpochSync
    from tf_bridge.dataset import ImageDataset, from_records, from_tfds, from_tfrecords
    from tf_bridge.keras_layers import Preprocess
    from tf_bridge.keras_recipe import from_keras
    from tf_bridge.resnet import resnet18
    from tf_bridge.resume import TrainingState, fit_resumable

__all__ = [
    "EpochSync",
    "ImageDataset",
    "Preprocess",
    "TrainingState",
    "fit_resumable",
    "from_keras",
    "from_records",
    "from_tfds",
    "from_tfrecords",
    "resnet18",
]

_HOME = {
    "EpochSync": "callbacks",
    "ImageDataset": "dataset",
    "Preprocess": "keras_layers",
    "TrainingState": "resume",
    "fit_resumable": "resume",
    "from_keras": "keras_recipe",
    "from_records": "dataset",
    "from_tfds": "dataset",
    "from_tfrecords": "dataset",
    "resnet18": "resnet",
}

if find_spec("tensorflow") is None:
    raise ImportError("tf_bridge needs TensorFlow, which is not installed: pip install 'tensorflow>=2.20,<2.22'")
if find_spec("nvidia") is None or find_spec("nvidia.dali") is None or find_spec("nvidia.dali_tf_plugin") is None:
    logging.getLogger(__name__).warning(
        "DALI or its TensorFlow plugin is not installed, so the tf.data engine does the work: "
        "pip install nvidia-dali-cuda120==2.4.0 && "
        "pip install --no-build-isolation --no-cache-dir nvidia-dali-tf-plugin-cuda120==2.4.0"
    )

if "keras" in sys.modules:
    import_module("tf_bridge.keras_layers")  # registers `Preprocess`, so that Keras can load a model that holds one


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: a command line that only prints its help should not wait for TF."""
    if name in _HOME:
        return globals().setdefault(name, getattr(import_module(f"tf_bridge.{_HOME[name]}"), name))
    raise AttributeError(f"module 'tf_bridge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
