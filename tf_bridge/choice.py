"""Which engine does the work, on which device, and why."""

import logging
from functools import cache
from typing import Literal, NamedTuple

import tensorflow as tf

from dali_pipe import ops
from dali_pipe.device import DeviceName, resolve_device
from dali_pipe.recipe import Recipe

log = logging.getLogger(__name__)

EngineName = Literal["auto", "dali", "tfdata"]
ENGINES = ("auto", "dali", "tfdata")


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
        ImportError: DALI was asked for and cannot be loaded; says why and how to install it.
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
        raise ImportError(
            f"DALI cannot be loaded ({fault}). Install it with its plugin: pip install nvidia-dali-cuda120==2.4.0 && "
            "pip install --no-build-isolation --no-cache-dir nvidia-dali-tf-plugin-cuda120==2.4.0, "
            'or use engine="tfdata".'
        )
    if fault:
        return _told(Choice("tfdata", "cpu", f"DALI cannot be loaded: {fault}"))
    resolved = resolve_device(device, framework_gpus=len(tf.config.list_physical_devices("GPU")))
    if engine == "auto" and resolved.kind == "cpu" and _resizes_slowly(recipe):
        return _told(Choice("tfdata", "cpu", f"{resolved.reason}; on the CPU tf.data resizes faster than DALI"))
    return _told(Choice("dali", resolved.kind, resolved.reason))


def cuda_ordinal(gpu: int) -> int:
    """CUDA's number for one of TensorFlow's logical GPUs, which may be some of the machine's, or slices of one."""
    ordinals = [
        int(device.name.rsplit(":", 1)[1])
        for device in tf.config.get_visible_devices("GPU")
        for _ in tf.config.get_logical_device_configuration(device) or [None]
    ]
    return ordinals[gpu]


def _resizes_slowly(recipe: Recipe) -> bool:
    """Whether every image passes a resize, which on the CPU takes DALI longer than TensorFlow.

    Over half of DALI's time for a random resized crop is its linear filter: 1.2 ms of CPU an image, where the tf.data
    engine takes 0.85 for everything. Plain crops are the other way round (`python -m benchmarks`).
    """
    return any(isinstance(op, ops.Resize | ops.ResizeShorter | ops.RandomResizedCrop) for op in recipe.steps)


@cache
def dali_fault() -> str | None:
    """Why DALI and its plugin cannot be loaded, in one line; None if they can."""
    try:
        import nvidia.dali.plugin.tf  # noqa: F401
    except Exception as error:  # ImportError without it; TensorFlow's NotFoundError where the plugin's ABI is another
        return str(error).strip().split("\n")[0] or type(error).__name__
    return None


@cache
def _told(choice: Choice) -> Choice:
    log.info("Engine: %s on the %s (%s).", choice.engine, choice.device.upper(), choice.reason)
    return choice
