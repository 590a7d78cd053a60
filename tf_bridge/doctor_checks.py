"""What the doctor's findings mean: a status, a line, and the command that mends it. Nothing here loads a library."""

import importlib.metadata
import os
import platform
import re
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tf_bridge import doctor_machine as machine
from tf_bridge.doctor_line import (
    DALI,
    DISTRIBUTION,
    Answers,
    Check,
    again,
    install,
    install_plugin,
    requirement,
    requirements,
)

_OLDEST_DRIVER = (525, 60, 13)  # that runs CUDA 12: table 2 of CUDA's guide to minor version compatibility
_CARRIES = {"cuFFT": "nvidia-cufft-cu12", "NPP": "nvidia-npp-cu12"}  # the distribution that brings it


def checks(answers: Answers) -> list[Check]:
    """Every line of the report, from what the probes answered."""
    return [
        _python(),
        _own(),
        _packages(),
        _tensorflow(answers["tensorflow"]),
        _dali(answers),
        _plugin(answers),
        machine.compiler(answers["plugin"]),
        _driver(answers["driver"]),
        _tensorflow_gpu(answers),
        _dali_gpu(answers),
        *(_library(name, answers) for name in _CARRIES),
        machine.cache(),
        machine.space(),
        *([machine.index_folder()] if _has_gpu(answers) else []),  # on the CPU there are none
        machine.cores(),
    ]


def _python() -> Check:
    have = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    try:
        wanted = importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"] or ""
    except importlib.metadata.PackageNotFoundError:
        wanted = ""
    if _within(sys.version_info[:2], wanted):
        return Check(name="Python", status="ok", detail=have)
    fix = f"uv run --python {re.findall(r'>=([0-9.]+)', wanted)[0]} dali-tf doctor"
    return Check(name="Python", status="broken", detail=f"{have}, must be {wanted}", fix=fix)


def _within(version: tuple[int, ...], bounds: str) -> bool:
    """Whether `>=a.b` and `<a.b` allow a version."""
    parts = re.findall(r"(>=|<)\s*(\d+)\.(\d+)", bounds)
    return all((version >= (int(a), int(b))) == (sign == ">=") for sign, a, b in parts)


def _own() -> Check:
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        root = shlex.quote(str(Path(__file__).parent.parent))
        detail = "runs from its folder, not installed"
        return Check(name=DISTRIBUTION, status="warning", detail=detail, fix=install(root, flags="-e"))
    return Check(name=DISTRIBUTION, status="ok", detail=version)


def _packages() -> Check:
    """What else this project needs; TensorFlow and DALI have lines of their own."""
    wanted = [line for line in requirements() if not line.startswith(("tensorflow<", "tensorflow>", "nvidia-"))]
    lacking = [line for line in wanted if not _installed(re.split(r"[<>=!~\[ ]", line)[0])]
    if lacking:
        names = ", ".join(re.split(r"[<>=!~\[ ]", line)[0] for line in lacking)
        return Check(name="Packages", status="broken", detail=f"not installed: {names}", fix=install(*lacking))
    return Check(name="Packages", status="ok", detail=f"the {len(wanted)} others that it needs are installed")


def _installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def _tensorflow(answer: Mapping[str, Any]) -> Check:
    wanted = requirement("tensorflow")
    if "error" in answer:
        fix = install(wanted) if answer.get("missing") else again(wanted)
        return Check(name="TensorFlow", status="broken", detail=answer["error"] + _elsewhere("tensorflow"), fix=fix)
    detail = f"{answer['version']}, Keras {answer['keras']}"
    if _within(tuple(map(int, answer["version"].split(".")[:2])), wanted):
        return Check(name="TensorFlow", status="ok", detail=detail)
    return Check(name="TensorFlow", status="broken", detail=f"{detail}; must be {wanted}", fix=install(wanted))


def _elsewhere(module: str) -> str:
    """Where a module comes from that lies in no folder for packages: installing again changes nothing about it."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # what a half-loaded or hidden module gives
        return ""
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    if spec is None or spec.origin is None or spec.origin.startswith(tuple(folders)):
        return ""
    return f"; it is {spec.origin}, from PYTHONPATH or the folder at hand"


def _dali(answers: Answers) -> Check:
    wanted, answer = requirement(DALI), answers["dali"]
    if answer.get("missing"):
        if sys.platform != "linux":
            return Check(name="DALI", status="ok", detail="exists for Linux only; the tf.data engine does the work")
        detail = "not installed; the tf.data engine does the work"
        fix = f"{install(wanted)} && {install_plugin()}" if _has_gpu(answers) else install(wanted)
        return Check(name="DALI", status="warning", detail=detail, fix=fix)
    if "error" in answer:
        return Check(name="DALI", status="broken", detail=answer["error"], fix=again(wanted))
    if "==" in wanted and answer["version"] != wanted.split("==")[1]:
        detail = f"{answer['version']}; must be {wanted.split('==')[1]}"
        return Check(name="DALI", status="broken", detail=detail, fix=install(wanted))
    return Check(name="DALI", status="ok", detail=answer["version"])


def _plugin(answers: Answers) -> Check:
    name, answer, without = "TF plugin", answers["plugin"], _without(answers)
    if without == "DALI" and answers["dali"].get("missing"):
        return Check(name=name, status="ok", detail="not needed without DALI")
    if without:
        return Check(name=name, status="warning", detail=f"not tried: {without} does not load")
    if answer.get("missing"):
        detail = "not installed; the tf.data engine does the work"
        return Check(name=name, status="warning", detail=detail, fix=install_plugin())
    if "error" in answer:
        abi = "undefined symbol" in answer["error"]
        cause = f"was compiled against another TensorFlow or DALI ({answer['error']})" if abi else answer["error"]
        return Check(name=name, status="broken", detail=cause, fix=install_plugin())
    if answer["version"] != answers["dali"]["version"]:
        detail = f"{answer['version']}, but DALI is {answers['dali']['version']}: they must be alike"
        return Check(name=name, status="broken", detail=detail, fix=install_plugin())
    if not answer["right"]:
        return Check(name=name, status="broken", detail="loads, but gives wrong batches", fix=install_plugin())
    return Check(name=name, status="ok", detail=f"{answer['version']}, ran a batch on the {answer['device'].upper()}")


def _without(answers: Answers) -> str | None:
    """What the plugin needs and cannot be loaded, or None."""
    return next((n for n, key in (("TensorFlow", "tensorflow"), ("DALI", "dali")) if "error" in answers[key]), None)


def _driver(answer: Mapping[str, Any]) -> Check:
    name, fix = "NVIDIA driver", machine.driver_fix()
    if "error" in answer:
        return Check(name=name, status="warning", detail=f"nvidia-smi: {answer['error']}", fix=fix)
    if "fault" in answer:
        return Check(name=name, status="broken", detail=f"nvidia-smi: {answer['fault']}", fix=fix)
    if answer["gpus"]:
        detail = "; ".join(answer["gpus"])
        if min(map(_driver_version, answer["gpus"])) >= _OLDEST_DRIVER:
            return Check(name=name, status="ok", detail=detail)
        oldest = ".".join(map(str, _OLDEST_DRIVER))
        return Check(name=name, status="broken", detail=f"{detail}: CUDA 12 needs {oldest} or newer", fix=fix)
    if answer["hardware"]:
        return Check(name=name, status="broken", detail="there is an NVIDIA GPU, but no nvidia-smi", fix=fix)
    return Check(name=name, status="ok", detail="no NVIDIA GPU: everything runs on the CPU")


def _driver_version(gpu: str) -> tuple[int, ...]:
    """Out of nvidia-smi's `name, driver version, memory`."""
    return tuple(map(int, re.findall(r"\d+", gpu.rsplit(",", 2)[1])))


def _has_gpu(answers: Answers) -> bool:
    return bool(answers["driver"].get("gpus"))


def _tensorflow_gpu(answers: Answers) -> Check:
    name, answer = "GPU, TensorFlow", answers["tensorflow"]
    if "error" in answer:
        return Check(name=name, status="warning", detail="not asked: TensorFlow does not load")
    if answer["gpus"]:
        return Check(name=name, status="ok", detail=", ".join(answer["gpus"]))
    if not _has_gpu(answers):
        return Check(name=name, status="ok", detail="none")
    fix = install(re.sub("^tensorflow", "tensorflow[and-cuda]", requirement("tensorflow")))
    why = "its CUDA libraries do not load" if answer["cuda"] else "this build is without CUDA"
    return _blind(name, why, fix)


def _blind(name: str, why: str, fix: str) -> Check:
    """A library that sees no GPU, though the driver does."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        why, fix = f"CUDA_VISIBLE_DEVICES={shlex.quote(visible)}", "unset CUDA_VISIBLE_DEVICES"
    return Check(name=name, status="broken", detail=f"sees none, though the driver does: {why}", fix=fix)


def _dali_gpu(answers: Answers) -> Check:
    name, answer = "GPU, DALI", answers["dali"]
    if answer.get("missing"):
        return Check(name=name, status="ok", detail="none: no DALI")
    if "error" in answer:
        return Check(name=name, status="warning", detail="not asked: DALI does not load")
    if answer["gpus"]:
        return Check(name=name, status="ok", detail=f"{answer['gpus']}")
    if not _has_gpu(answers):
        return Check(name=name, status="ok", detail="none")
    return _blind(name, answer["gpu_fault"] or "CUDA finds none", machine.cuda_fix())


def _library(name: str, answers: Answers) -> Check:
    package, answer = _CARRIES[name], answers["libraries"]
    if "error" in answer:
        return Check(name=name, status="warning", detail=answer["error"], fix=install(package))
    lacking = [file for file, path in answer[name].items() if path is None]
    if not lacking:
        folder = os.path.dirname(next(iter(answer[name].values())))
        return Check(name=name, status="ok", detail=folder or "found by the loader")
    if not _has_gpu(answers) or answers["dali"].get("missing"):
        return Check(name=name, status="ok", detail="not there; needed on a GPU only")
    return Check(name=name, status="broken", detail=f"{', '.join(lacking)} not found", fix=install(package))
