"""What the doctor finds out about the machine: compiler, system, folders, space, cores. Nothing here can crash."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dali_pipe.device import available_cores
from dali_pipe.folders import cache_folder
from tf_bridge.doctor_line import Check, Status

_TIGHT, _FULL = 2 << 30, 64 << 20  # bytes free: soon none for checkpoints and repairs; none for the embedded data
_INDEX = 65_536 * 4096  # bytes: the most index files that an epoch has, a page for each
_TOOLS = {"g++": "g++", "strings": "binutils"}  # program, and the package that brings it


def compiler(plugin: Mapping[str, Any]) -> Check:
    """The programs that compile the TF plugin when it is installed."""
    found = {tool: shutil.which(tool) for tool in _TOOLS}
    lacking = [tool for tool, path in found.items() if path is None]
    name = "Compiler"
    if not lacking:
        return Check(name=name, status="ok", detail=", ".join(str(path) for path in found.values()))
    if sys.platform != "linux":
        return Check(name=name, status="ok", detail="not needed here")
    fix = f"apt-get install -y {' '.join(_TOOLS[tool] for tool in lacking)}"
    needed = "the TF plugin cannot be compiled" if "error" in plugin else "needed only to install the TF plugin again"
    return Check(name=name, status="warning", detail=f"{' and '.join(lacking)} not found: {needed}", fix=fix)


def driver_fix() -> str:
    """What brings a driver that works. A container has its host's."""
    if in_container():
        return "add `--gpus all` to `docker run`; the host needs NVIDIA's driver and its Container Toolkit"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if "ubuntu" in (release.get("ID"), *release.get("ID_LIKE", "").split()):
        return "sudo ubuntu-drivers install  # then restart the machine"
    return "install the driver from https://www.nvidia.com/drivers, and restart the machine"


def cuda_fix() -> str:
    """What lets CUDA use the GPU that nvidia-smi lists."""
    if in_container():
        return "add `--gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility` to `docker run`"
    return driver_fix()


def in_container() -> bool:
    """Whether Docker, Podman or Kubernetes run this."""
    marks = Path("/.dockerenv"), Path("/run/.containerenv")
    return any(mark.exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in os.environ


def cache() -> Check:
    """Whether scans can be kept."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        detail = f"{folder}: {error.strerror}; every scan starts over"
        return Check(
            name="Cache folder", status="warning", detail=detail, fix="export DALI_TF_CACHE=/a/writable/folder"
        )
    return Check(name="Cache folder", status="ok", detail=str(folder))


def space() -> Check:
    """Room for the embedded data set and what is kept."""
    folder = _existing(cache_folder())
    free = shutil.disk_usage(folder).free
    fix = "export DALI_TF_CACHE=/a/folder/with/space"
    detail = f"{_gigabytes(free)} at the cache folder"
    return _graded("Free space", detail, free < _TIGHT, free < _FULL, fix)


def index_folder() -> Check:
    """Room for the index files that an epoch on a GPU has: see `dali_pipe/index_files.py`."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    enlarge = "add `--shm-size=1g` to `docker run`" if in_container() else "sudo mount -o remount,size=1g /dev/shm"
    fix = enlarge if folder == "/dev/shm" else "export TMPDIR=/a/folder/with/space"
    return _graded("Index files", f"{folder}, {_gigabytes(free)} free", free < _INDEX, not free, fix)


def _graded(name: str, detail: str, tight: bool, full: bool, fix: str) -> Check:
    status: Status = "broken" if full else "warning" if tight else "ok"
    return Check(name=name, status=status, detail=detail, fix=fix if status != "ok" else None)


def _existing(folder: Path) -> Path:
    return next((parent for parent in (folder, *folder.parents) if parent.is_dir()), Path.cwd())


def _gigabytes(count: int) -> str:
    return f"{count / (1 << 30):,.1f} GB"


def cores() -> Check:
    """Cores that this process may use."""
    usable = available_cores()
    allowed = cgroup_quota()
    if allowed is not None and allowed < usable - 0.5:
        threads = max(1, round(allowed))
        detail = f"{usable} are visible, but the container's quota is {allowed:g}: more threads than that only wait"
        return Check(name="CPU cores", status="warning", detail=detail, fix=f"dali-tf train --threads {threads}")
    return Check(name="CPU cores", status="ok", detail=f"{usable} of {os.cpu_count()}")


def cgroup_quota() -> float | None:
    """Cores' worth of time that the container's scheduler allows; None where there is no limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)
