"""DALI pipelines and plain tf.data as one `tf.data.Dataset` that drops into Keras's `fit`.

Importing this says what is missing, and loads neither TensorFlow nor DALI; using a name does.
"""

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_bridge.callbacks import EpochSync
    from tf_bridge.dataset import ImageDataset, from_records, from_tfds, from_tfrecords
    from tf_bridge.distributed import DistributedImages, distribute
    from tf_bridge.input_monitor import InputMonitor
    from tf_bridge.keras_layers import Preprocess
    from tf_bridge.keras_recipe import from_keras
    from tf_bridge.resnet import resnet18
    from tf_bridge.resume import TrainingState, fit_resumable
    from tf_bridge.workers import across_workers

__all__ = [
    "DistributedImages",
    "EpochSync",
    "ImageDataset",
    "InputMonitor",
    "Preprocess",
    "TrainingState",
    "across_workers",
    "distribute",
    "fit_resumable",
    "from_keras",
    "from_records",
    "from_tfds",
    "from_tfrecords",
    "resnet18",
]

_HOME = {
    "DistributedImages": "distributed",
    "EpochSync": "callbacks",
    "ImageDataset": "dataset",
    "InputMonitor": "input_monitor",
    "Preprocess": "keras_layers",
    "TrainingState": "resume",
    "across_workers": "workers",
    "distribute": "distributed",
    "fit_resumable": "resume",
    "from_keras": "keras_recipe",
    "from_records": "dataset",
    "from_tfds": "dataset",
    "from_tfrecords": "dataset",
    "resnet18": "resnet",
}

if "keras" in sys.modules:
    import_module("tf_bridge.keras_layers")  # registers `Preprocess`, so that Keras can load a model that holds one


_log = logging.getLogger(__name__)
_NO_TENSORFLOW = "tf_bridge needs TensorFlow, which is not installed: pip install 'tensorflow>=2.20,<2.22'"


def _installed(*names: str) -> bool:
    try:
        return all(find_spec(name) for name in names)
    except ImportError:  # somebody's import hook
        return False


# Importing only tells: `dali-tf doctor` is for installations that lack something.
if not _installed("tensorflow"):
    _log.warning(_NO_TENSORFLOW)
elif sys.platform == "linux" and not _installed("nvidia", "nvidia.dali"):  # elsewhere, it is not
    _log.warning("DALI is not installed, so the tf.data engine does the work: pip install nvidia-dali-cuda120==2.4.0")


def check_installed() -> None:
    """Refuse to go on without TensorFlow.

    Raises:
        ImportError: says how to install it.
    """
    if not _installed("tensorflow"):
        raise ImportError(_NO_TENSORFLOW)


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: a command line that only prints its help should not wait for TF."""
    if name in _HOME:
        check_installed()
        return globals().setdefault(name, getattr(import_module(f"tf_bridge.{_HOME[name]}"), name))
    raise AttributeError(f"module 'tf_bridge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
