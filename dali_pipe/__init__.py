"""What a batch of images is made of, and where: recipes, record views, plans, and their DALI pipelines.

Importing this loads neither DALI nor TensorFlow; `dali_pipe.pipeline` loads DALI.
"""

from dali_pipe.device import Device, DeviceUnavailableError, resolve_device
from dali_pipe.plan import Plan
from dali_pipe.recipe import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    Normalize,
    Op,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Recipe,
    Resize,
    ResizeShorter,
    crop_eval,
    crop_train,
    imagenet_eval,
    imagenet_train,
)
from dali_pipe.records import Records, Schema, from_files
from dali_pipe.tfrecord import RecordError

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "Device",
    "DeviceUnavailableError",
    "Normalize",
    "Op",
    "Plan",
    "RandomCrop",
    "RandomFlip",
    "RandomResizedCrop",
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
