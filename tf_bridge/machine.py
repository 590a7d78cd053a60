"""What figures were measured on: without it they mean nothing a month later."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from dali_pipe.device import available_cores

PACKAGES = ("tensorflow", "keras", "nvidia-dali-cuda120", "numpy", "tensorflow-datasets", "grain")


def describe(folder: Path | None = None) -> dict[str, Any]:
    """CPU, cores, memory, GPUs, versions, load and date, as JSON can hold it; what the system does not tell is None.

    Args:
        folder: of a git checkout, whose commit is added; "-dirty" follows where files differ from it.
    """
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": available_cores(),
        "memory_gb": _memory_gb(),
        "gpus": gpus(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(folder) if folder else None,
    }


def one_line(machine: dict[str, Any]) -> str:
    """Of `describe`, what people compare by."""
    packages = machine["packages"]
    versions = [f"TensorFlow {packages.get('tensorflow')}", f"DALI {packages.get('nvidia-dali-cuda120')}"]
    gpu, load = ", ".join(machine["gpus"]) or "no GPU", machine["load_before"]
    told = "" if load is None else f"; load {load:.1f}"
    return f"{machine['cpu']}, {machine['cores']} cores, {gpu}; {', '.join(versions)}{told}"


def cpu_model() -> str:
    """As /proc/cpuinfo names it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def gpus() -> list[str]:
    """Names of the GPUs that the driver lists."""
    names = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return names.splitlines() if names else []


def _memory_gb() -> float | None:
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit(folder: Path) -> str | None:
    return _output(["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"])


def _output(command: Sequence[str]) -> str | None:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
