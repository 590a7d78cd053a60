"""Which device a pipeline gets, and what people are told about it."""

import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dali_pipe import Device, DeviceUnavailableError, device, resolve_device


@pytest.fixture(autouse=True)
def _nothing_told_yet() -> Iterator[None]:
    device._told.cache_clear()
    yield
    device._told.cache_clear()


def _gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(device, "dali_gpu_count", lambda: count)


@pytest.mark.parametrize(
    ("name", "dali", "framework", "result"),
    [
        ("cpu", 1, 1, Device("cpu", "asked for")),
        ("cpu", 0, 0, Device("cpu", "asked for")),
        ("auto", 1, 1, Device("gpu", "DALI and TensorFlow can use a GPU")),
        ("auto", 2, None, Device("gpu", "DALI can use a GPU")),
        ("auto", 0, None, Device("cpu", "DALI found no GPU")),
        ("auto", 0, 1, Device("cpu", "DALI found no GPU")),
        ("auto", 1, 0, Device("cpu", "TensorFlow found no GPU")),
        ("auto", 0, 0, Device("cpu", "DALI and TensorFlow found no GPU")),
        ("gpu", 1, 1, Device("gpu", "DALI and TensorFlow can use a GPU")),
        ("gpu", 1, None, Device("gpu", "DALI can use a GPU")),
    ],
)
def test_resolves(monkeypatch: pytest.MonkeyPatch, name: Any, dali: int, framework: int | None, result: Device) -> None:
    _gpus(monkeypatch, dali)
    assert resolve_device(name, framework_gpus=framework) == result


def test_auto_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 1)
    assert resolve_device().kind == "gpu"


@pytest.mark.parametrize(
    ("dali", "framework", "message"),
    [
        (0, None, "needs a GPU that DALI can use. DALI found none"),
        (1, 0, "needs a GPU that DALI and TensorFlow can use. TensorFlow found none"),
        (0, 0, "DALI and TensorFlow found none: check `nvidia-smi` and install the extra `gpu`, or use"),
    ],
)
def test_refuses_a_gpu_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, dali: int, framework: int | None, message: str
) -> None:
    _gpus(monkeypatch, dali)
    with pytest.raises(DeviceUnavailableError) as caught:
        resolve_device("gpu", framework_gpus=framework)
    assert message in str(caught.value)
    assert str(caught.value).endswith('or use device="cpu".')


@pytest.mark.parametrize("name", ["cuda", "GPU", "gpu:0", None, 0])
def test_refuses_other_names(name: Any) -> None:
    with pytest.raises(ValueError, match='`device` must be "auto", "gpu" or "cpu". Received: device=' + repr(name)):
        resolve_device(name)


def test_each_outcome_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    _gpus(monkeypatch, 0)
    with caplog.at_level(logging.INFO, "dali_pipe.device"):
        for _ in range(3):
            resolve_device("auto", framework_gpus=0)
            resolve_device("cpu")
    assert caplog.messages == ["Device: cpu (DALI and TensorFlow found no GPU).", "Device: cpu (asked for)."]


def _backend(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    import nvidia.dali

    monkeypatch.setattr(nvidia.dali, "backend", backend)


def test_dali_counts_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    _backend(monkeypatch, SimpleNamespace(GetCUDADeviceCount=lambda: 3))
    assert device.dali_gpu_count() == 3


@pytest.mark.parametrize("error", [RuntimeError("CUDA driver version is insufficient"), OSError("libcuda.so.1")])
def test_a_broken_driver_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def broken() -> int:
        raise error

    _backend(monkeypatch, SimpleNamespace(GetCUDADeviceCount=broken))
    with caplog.at_level(logging.DEBUG, "dali_pipe.device"):
        assert device.dali_gpu_count() == 0
    assert f"DALI cannot count GPUs: {error}" in caplog.text


def test_without_dali_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert device.dali_gpu_count() == 0
    assert resolve_device("auto").kind == "cpu"


@pytest.mark.gpu
def test_a_gpu_is_found() -> None:
    assert resolve_device("gpu") == Device("gpu", "DALI can use a GPU")
