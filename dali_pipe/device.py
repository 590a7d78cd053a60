"""Which device runs a pipeline, and why; how many cores there are to run it."""

import logging
import os
from functools import cache
from typing import Literal, NamedTuple

log = logging.getLogger(__name__)

DeviceName = Literal["auto", "gpu", "cpu"]


class DeviceUnavailableError(RuntimeError):
    """A GPU was asked for, and DALI or TensorFlow cannot use one."""


class Device(NamedTuple):
    """A resolved device: `kind` is "gpu" or "cpu", `reason` says why, for people."""

    kind: Literal["gpu", "cpu"]
    reason: str


def dali_gpu_count() -> int:
    """GPUs that DALI can use; 0 without DALI, without a driver, or with a broken one."""
    try:
        from nvidia.dali import backend

        return int(backend.GetCUDADeviceCount())  # type: ignore[attr-defined]
    except Exception as error:  # a broken driver raises RuntimeError, a broken install ImportError or OSError
        log.debug("DALI cannot count GPUs: %s", error)
        return 0


def resolve_device(device: DeviceName = "auto", *, framework_gpus: int | None = None) -> Device:
    """Settle "auto", and refuse a GPU that is not there. Logs each outcome once.

    Args:
        device: "auto" takes the GPU only if everybody concerned can use it.
        framework_gpus: GPUs that the framework behind DALI can use; None if DALI runs alone.

    Raises:
        DeviceUnavailableError: "gpu" was asked for and there is none.
    """
    if device not in ("auto", "gpu", "cpu"):
        raise ValueError(f'`device` must be "auto", "gpu" or "cpu". Received: device={device!r}')
    if device == "cpu":
        return _told(Device("cpu", "asked for"))
    counts = {"DALI": dali_gpu_count()}
    if framework_gpus is not None:
        counts["TensorFlow"] = framework_gpus
    without = [name for name, count in counts.items() if not count]
    if not without:
        return _told(Device("gpu", f"{' and '.join(counts)} can use a GPU"))
    if device == "gpu":
        raise DeviceUnavailableError(
            f'`device="gpu"` needs a GPU that {" and ".join(counts)} can use. {" and ".join(without)} found none: '
            'check `nvidia-smi` and install the extra `gpu`, or use device="cpu".'
        )
    return _told(Device("cpu", f"{' and '.join(without)} found no GPU"))


@cache
def _told(device: Device) -> Device:
    log.info("Device: %s (%s).", device.kind, device.reason)
    return device


def available_cores() -> int:
    """Cores this process may use, which in a container or under SLURM are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
