"""Which engine is taken, and what is said about it."""

import logging
from pathlib import Path
from typing import Any

import pytest

import dali_pipe as dp
import tf_bridge as tb
from tests import support
from tf_bridge import choice

CROP = dp.crop_train(32, "uint8")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dali_pipe.device.dali_gpu_count", lambda: 0)
    choice._told.cache_clear()


@pytest.mark.parametrize(
    ("recipe", "engine"),
    [
        (CROP, "dali"),
        (dp.crop_train(32), "dali"),
        (dp.imagenet_train(32, "uint8"), "tfdata"),
        (dp.imagenet_train(32, "float32"), "tfdata"),
        (dp.imagenet_eval(32, "uint8"), "tfdata"),
        (dp.imagenet_eval(32, "float32"), "tfdata"),
        (dp.Recipe((dp.Resize(32),)), "tfdata"),
        (dp.Recipe((dp.CenterCrop(32), dp.RandomFlip(), dp.RandomErasing())), "dali"),
        (dp.Recipe((dp.RandomCrop(32), dp.RandomHue())), "tfdata"),
        (dp.Recipe((dp.RandomCrop(32),), label=dp.OneHot(2), mix=dp.MixUp()), "tfdata"),
    ],
)
def test_auto_on_a_cpu_takes_the_faster_for_the_recipe(recipe: dp.Recipe, engine: str) -> None:
    settled = choice.choose("auto", "auto", recipe)
    assert (settled.engine, settled.device) == (engine, "cpu")
    assert "found no GPU" in settled.reason
    assert ("tf.data is faster than DALI at" in settled.reason) == (engine == "tfdata")
    assert choice.choose("dali", "auto", recipe).engine == "dali"


def test_auto_on_a_gpu_takes_dali_whatever_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dali_pipe.device.dali_gpu_count", lambda: 1)
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: ["GPU:0"])
    settled = choice.choose("auto", "auto", dp.imagenet_eval(32, "uint8"))
    assert (settled.engine, settled.device) == ("dali", "gpu")


class TestWithoutDALI:
    @pytest.fixture(autouse=True)
    def _hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choice, "dali_fault", lambda: "No module named 'nvidia'")

    def test_auto_takes_tf_data_and_says_why(self, photographs: list[Path], caplog: Any) -> None:
        with caplog.at_level(logging.INFO):
            ds = tb.from_tfrecords(photographs, recipe=CROP, batch_size=16)
        assert ds.engine == "tfdata"
        assert "No module named 'nvidia'" in ds.reason
        assert "Engine: tfdata on the CPU (DALI cannot be loaded: No module named 'nvidia')" in caplog.text
        assert sum(len(y) for _, y in ds) == 48

    @pytest.mark.parametrize("options", [{"engine": "dali"}, {"device": "gpu"}])
    def test_asking_for_it_says_how_to_install_it(self, photographs: list[Path], options: dict[str, Any]) -> None:
        with pytest.raises(ImportError, match=r"pip install nvidia-dali-cuda120==2\.4\.0") as caught:
            tb.from_tfrecords(photographs, recipe=CROP, batch_size=16, **options)
        assert "No module named 'nvidia'" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_outcome_is_logged_once(photographs: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            ds = tb.from_tfrecords(photographs, recipe=CROP, batch_size=16, device="cpu")
    assert caplog.text.count("Engine: dali on the CPU") == 1
    assert ds.reason == "asked for"


@pytest.mark.slow
def test_a_process_without_dali_trains_on_tf_data(photographs: list[Path]) -> None:
    code = f"""
import sys
for name in ('nvidia', 'nvidia.dali', 'nvidia.dali_tf_plugin'):
    sys.modules[name] = None
import dali_pipe as dp, tf_bridge as tb
ds = tb.from_tfrecords({[str(p) for p in photographs]!r}, recipe=dp.crop_train(32, 'uint8'), batch_size=16)
assert ds.engine == 'tfdata', ds
assert sum(len(y) for _, y in ds) == 48
"""
    done = support.run_python(code)
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "DALI" in line]
    assert "pip install nvidia-dali-cuda120==2.4.0" in told
