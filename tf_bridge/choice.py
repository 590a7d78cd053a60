"""Which engine does the work, on which device, and why."""

import logging
from functools import cache
from importlib import import_module
from typing import Literal, NamedTuple

import tensorflow as tf

from dali_pipe import ops
from dali_pipe.device import Device, DeviceName, resolve_device
from dali_pipe.recipe import Recipe

log = logging.getLogger(__name__)

EngineName = Literal["auto", "dali", "tfdata"]
ENGINES = ("auto", "dali", "tfdata")
# Measured on two cores, in CPU ms an image of 224: crop and flip 0.42 (tf.data 0.48), erasing 0.52 (0.98); but a random
# resized crop 1.1 (0.8), contrast 2.4 (1.2), colours 3.2 (1.2), grey 1.9 (1.0), MixUp 1.9 (1.0), padding 0.63 (0.50).
_QUICK_IN_DALI = (ops.RandomCrop, ops.CenterCrop, ops.RandomFlip, ops.RandomErasing, ops.Normalize)
_INSTALL = "pip install nvidia-dali-cuda120==2.4.0"
_INSTALL_PLUGIN = "pip install --no-build-isolation --no-cache-dir nvidia-dali-tf-plugin-cuda120==2.4.0"


class Choice(NamedTuple):
    """A settled engine ("dali" or "tfdata") and device ("gpu" or "cpu"), and the reason, for people."""

    engine: Literal["dali", "tfdata"]
    device: Literal["gpu", "cpu"]
    reason: str


def choose(engine: EngineName, device: DeviceName, recipe: Recipe) -> Choice:
    """Settle "auto". Logs each outcome once.

    On a GPU it is DALI; without one, whichever engine is faster on the CPU for this recipe; without DALI, tf.data.

    Raises:
        ValueError: an argument is not one of its values, or the two contradict each other.
        ImportError: DALI, or a GPU, was asked for and DALI, or the plugin that the GPU needs, cannot be loaded; says
            why and how to install it.
        DeviceUnavailableError: a GPU was asked for and there is none.
    """
    if engine not in ENGINES:
        raise ValueError(f'`engine` must be "auto", "dali" or "tfdata". Received: engine={engine!r}')
    if engine == "tfdata":
        if device == "gpu":
            raise ValueError('`device="gpu"` needs engine="dali": tf.data decodes on the CPU')
        return _told(Choice("tfdata", "cpu", "the tf.data engine was asked for"))
    fault = dali_fault()
    if fault and (engine == "dali" or device == "gpu"):
        command = f"{_INSTALL} && {_INSTALL_PLUGIN}" if device == "gpu" else _INSTALL
        raise ImportError(f'DALI cannot be loaded ({fault}). Install it: {command}, or use engine="tfdata".')
    if fault:
        return _told(Choice("tfdata", "cpu", f"DALI cannot be loaded: {fault}"))
    resolved = dali_device(device)
    if engine == "auto" and resolved.kind == "cpu" and (slow := _slower_in_dali(recipe)):
        return _told(Choice("tfdata", "cpu", f"{resolved.reason}; on the CPU tf.data is faster than DALI at {slow}"))
    return _told(Choice("dali", resolved.kind, resolved.reason))


def dali_device(device: DeviceName = "auto") -> Device:
    """Settle the device for DALI: a GPU only if DALI, its plugin and TensorFlow can use it.

    Raises:
        ImportError: a GPU was asked for and the plugin cannot be loaded; says why and how to install it.
        DeviceUnavailableError: a GPU was asked for and there is none.
    """
    resolved = resolve_device(device, framework_gpus=len(tf.config.list_physical_devices("GPU")))
    if resolved.kind == "cpu" or (fault := plugin_fault()) is None:
        return resolved
    problem = f"DALI's TensorFlow plugin, which a GPU needs, cannot be loaded ({fault})"
    if device == "gpu":
        raise ImportError(f'{problem}. Install it: {_INSTALL_PLUGIN}, or use device="cpu".')
    _warned(f"There is a GPU, but {problem}: {_INSTALL_PLUGIN}")
    return Device("cpu", problem)


def cuda_ordinal(gpu: int) -> int:
    """CUDA's number for one of TensorFlow's logical GPUs, which may be some of the machine's, or slices of one."""
    ordinals = [
        int(device.name.rsplit(":", 1)[1])
        for device in tf.config.get_visible_devices("GPU")
        for _ in tf.config.get_logical_device_configuration(device) or [None]
    ]
    return ordinals[gpu]


def _slower_in_dali(recipe: Recipe) -> str:
    """What of the recipe takes DALI longer than TensorFlow on the CPU, named; nothing if all of it is quicker there."""
    slow = [type(op).__name__ for op in recipe.steps if not isinstance(op, _QUICK_IN_DALI)]
    return ", ".join([*slow, *([type(recipe.mix).__name__] if recipe.mix else [])])


@cache
def dali_fault() -> str | None:
    """Why DALI cannot be loaded, in one line; None if it can."""
    return _fault("nvidia.dali")


@cache
def plugin_fault() -> str | None:
    """Why DALI's TensorFlow plugin, which only a GPU needs, cannot be loaded, in one line; None if it can."""
    return _fault("nvidia.dali.plugin.tf")


def _fault(module: str) -> str | None:
    try:
        import_module(module)
    except Exception as error:  # ImportError without it; TensorFlow's NotFoundError where the plugin's ABI is another
        return str(error).strip().split("\n")[0] or type(error).__name__
    return None


@cache
def _warned(message: str) -> None:
    log.warning("%s", message)


@cache
def _told(choice: Choice) -> Choice:
    log.info("Engine: %s on the %s (%s).", choice.engine, choice.device.upper(), choice.reason)
    return choice
