"""What a batch of images is made of, and where: recipes, record views, plans, and their DALI pipelines.

Importing this loads nothing; using a name loads numpy and its module. Only `dali_pipe.pipeline` needs DALI
(`dali_pipe.device` asks it for the number of GPUs, where it is there), and nothing here loads TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dali_pipe.batch_ops import CutMix, MixUp, OneHot
    from dali_pipe.color_ops import Grayscale, RandomBrightness, RandomContrast, RandomHue, RandomSaturation
    from dali_pipe.device import Device, DeviceUnavailableError, resolve_device
    from dali_pipe.ops import (
        IMAGENET_MEAN,
        IMAGENET_STD,
        CenterCrop,
        Normalize,
        Op,
        Pad,
        RandomCrop,
        RandomErasing,
        RandomFlip,
        RandomResizedCrop,
        RandomRotation,
        Resize,
        ResizeShorter,
    )
    from dali_pipe.plan import Plan
    from dali_pipe.recipe import Recipe, crop_eval, crop_train, imagenet_eval, imagenet_train
    from dali_pipe.records import Records, Schema, from_files
    from dali_pipe.tfrecord import RecordError

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "CutMix",
    "Device",
    "DeviceUnavailableError",
    "Grayscale",
    "MixUp",
    "Normalize",
    "OneHot",
    "Op",
    "Pad",
    "Plan",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomHue",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSaturation",
    "Recipe",
    "RecordError",
    "Records",
    "Resize",
    "ResizeShorter",
    "Schema",
    "crop_eval",
    "crop_train",
    "from_files",
    "imagenet_eval",
    "imagenet_train",
    "resolve_device",
]

_MODULES = ("ops", "color_ops", "batch_ops", "recipe", "records", "plan", "device", "tfrecord")


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: a command line that only prints its help should not wait for numpy."""
    if name in __all__:
        for module in map(import_module, (f"dali_pipe.{module}" for module in _MODULES)):
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module 'dali_pipe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
