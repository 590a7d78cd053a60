"""What `dali-tf doctor` asks of one library, run as a script in a process of its own: whatever it loads may crash.

Imports nothing of this project, and nothing of a library before its probe is called. The answer is the last line of
standard output, as JSON: what a broken library prints besides does not matter.
"""

import ctypes
import glob
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MARK = "DALI-TF-DOCTOR "
# What DALI 2.4 opens by name when a GPU operator needs it, and where its RUNPATH has it looked for.
LIBRARIES = {"cuFFT": ("libcufft.so.11",), "NPP": ("libnppc.so.12", "libnppicc.so.12", "libnppig.so.12")}
_RUNPATH = ("nvidia/dali", "nvidia/cufft/lib", "nvidia/npp/lib", "nvidia/cu12/lib", "/usr/local/cuda/lib64")


def tensorflow() -> dict[str, Any]:
    """Versions of TensorFlow and Keras, and the GPUs that TensorFlow can use."""
    import tensorflow as tf

    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    return {
        "version": tf.__version__,
        "keras": tf.keras.__version__,
        "cuda": bool(tf.test.is_built_with_cuda()),
        "gpus": [str(details.get("device_name", "GPU")) for details in gpus],
    }


def dali() -> dict[str, Any]:
    """DALI's version, and the GPUs that it can use; a broken driver is an answer, not a failure."""
    import nvidia.dali as library
    from nvidia.dali import backend

    try:
        gpus, fault = int(backend.GetCUDADeviceCount()), None  # type: ignore[attr-defined]
    except Exception as error:
        gpus, fault = 0, _gist(error)
    return {"version": library.__version__, "gpus": gpus, "gpu_fault": fault}


def plugin() -> dict[str, Any]:
    """Loads the plugin, and draws a batch through it: on the GPU where DALI sees one."""
    version = _version("nvidia-dali-tf-plugin-cuda")
    if find_spec("nvidia.dali_tf_plugin") is None:
        raise ModuleNotFoundError("No module named 'nvidia.dali_tf_plugin'")
    import nvidia.dali.plugin.tf as dali_tf
    import tensorflow as tf
    from nvidia.dali import backend, fn, pipeline_def, types

    sees_one = backend.GetCUDADeviceCount()  # type: ignore[attr-defined]
    device = "gpu" if sees_one and tf.config.list_physical_devices("GPU") else "cpu"
    place: dict[str, Any] = {"batch_size": 2, "num_threads": 1, "device_id": 0 if device == "gpu" else None}

    @pipeline_def(**place)
    def counting() -> Any:
        numbers = fn.constant(idata=[1, 2, 3], dtype=types.INT32, device="cpu")  # type: ignore[attr-defined]
        return numbers.gpu() if device == "gpu" else numbers

    pipe = counting()
    pipe.build()  # a fault is an exception here, and an abort inside TensorFlow
    with tf.device(f"/{device}:0"):
        batches = dali_tf.DALIDataset(pipe, output_dtypes=(tf.int32,), output_shapes=((2, 3),), **place)
    (batch,) = next(iter(batches))
    return {"version": version, "device": device, "right": batch.numpy().tolist() == [[1, 2, 3]] * 2}


def driver() -> dict[str, Any]:
    """NVIDIA hardware on the bus, and what its driver says; no library of CUDA's is needed for it."""
    vendors = (_read(path) for path in glob.glob("/sys/bus/pci/devices/*/vendor"))
    devices = glob.glob("/dev/nvidia[0-9]*")
    smi = shutil.which("nvidia-smi")
    found: dict[str, Any] = {"hardware": "0x10de" in vendors or bool(devices), "gpus": []}
    if smi:
        query = [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
        if done.returncode:
            found["fault"] = " ".join((done.stdout + done.stderr).split())[:200]
        else:
            found["gpus"] = done.stdout.strip().splitlines()
    return found


def libraries() -> dict[str, Any]:
    """Path of each library that GPU operators open, or None; by name of the group."""
    return {group: {name: _located(name) for name in names} for group, names in LIBRARIES.items()}


def _located(name: str) -> str | None:
    for folder in (Path(entry) / part for entry in sys.path for part in _RUNPATH):
        if (folder / name).is_file():
            return str(folder / name)
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    return name


def _version(prefix: str) -> str | None:
    """Of the installed distribution whose name begins so."""
    for distribution in importlib.metadata.distributions():
        if (distribution.metadata["Name"] or "").lower().replace("_", "-").startswith(prefix):
            return distribution.version
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _gist(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


PROBES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "tensorflow": tensorflow,
    "dali": dali,
    "plugin": plugin,
    "driver": driver,
    "libraries": libraries,
}


def main(name: str) -> None:
    """Print the answer of one probe: what it found, or `{"error": …, "missing": …}`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        answer = PROBES[name]()
    except ModuleNotFoundError as error:
        answer = {"error": str(error), "missing": True}
    except Exception as error:
        answer = {"error": _gist(error), "missing": False}
    print(f"\n{MARK}{json.dumps(answer)}", flush=True)
    os._exit(0)  # at exit, libraries that work may crash, and would be called broken


if __name__ == "__main__":
    main(sys.argv[1])
