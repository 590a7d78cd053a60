"""What importing loads, in fresh interpreters."""

import json
import re
import sys
from pathlib import Path

import pytest

import dali_pipe
import tf_bridge as tb
from tests import support
from tf_bridge import choice

LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def _modules(code: str, **environment: str) -> set[str]:
    """Packages that are loaded after running the code."""
    process = support.run_python(f"{code}\n{LOADED}", **environment)
    assert process.returncode == 0, process.stderr
    return set(json.loads(process.stdout))


def test_importing_dali_pipe_loads_no_framework() -> None:
    loaded = _modules("import dali_pipe")
    assert "dali_pipe" in loaded
    assert not loaded & {"tensorflow", "nvidia.dali", "tensorflow_datasets", "PIL", "numpy"}


def test_using_dali_pipe_loads_no_framework() -> None:
    names = ", ".join(dali_pipe.__all__)
    loaded = _modules(f"from dali_pipe import {names}; import dali_pipe.tfds_source, dali_pipe.reader")
    assert {"numpy", "dali_pipe.records"} <= loaded
    assert not loaded & {"tensorflow", "nvidia.dali", "tensorflow_datasets"}


def test_pipelines_load_dali_and_no_tensorflow() -> None:
    loaded = _modules("import dali_pipe.pipeline")
    assert "nvidia.dali" in loaded
    assert not loaded & {"tensorflow", "tensorflow_datasets"}


def test_importing_dali_pipe_takes_no_time() -> None:
    code = "import time; start = time.perf_counter(); import dali_pipe; print(time.perf_counter() - start)"
    took = [float(support.run_python(code).stdout) for _ in range(3)]
    assert min(took) < 0.3


def test_every_public_name_is_there() -> None:
    assert sorted(dir(dali_pipe)) == sorted(dali_pipe.__all__)
    for name in dali_pipe.__all__:
        assert getattr(dali_pipe, name) is getattr(dali_pipe, name)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'dali_pipe' has no attribute 'crop_trian'"):
        dali_pipe.crop_trian  # noqa: B018


def test_tf_bridge_without_tensorflow_says_what_to_install() -> None:
    missing = r"tf_bridge needs TensorFlow.*: pip install 'tensorflow>=.*'"
    process = support.run_python("import sys; sys.modules['tensorflow'] = None; import tf_bridge")
    assert process.returncode == 0 and re.fullmatch(missing, process.stderr.strip())
    process = support.run_python("import sys; sys.modules['tensorflow'] = None; from tf_bridge import from_tfds")
    assert process.returncode == 1
    assert re.fullmatch(f"ImportError: {missing}", process.stderr.strip().splitlines()[-1])


@pytest.mark.parametrize("missing", ["nvidia", "nvidia.dali"])
def test_tf_bridge_without_dali_says_what_to_install(missing: str) -> None:
    process = support.run_python(f"import sys; sys.modules[{missing!r}] = None; import tf_bridge")
    told = r"DALI is not installed, so the tf\.data engine does the work: pip install nvidia-dali-cuda120==\S+\n"
    assert process.returncode == 0 and re.fullmatch(told, process.stderr)


def test_tf_bridge_without_dali_reads_with_tf_data(photographs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "nvidia"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(choice, "dali_fault", choice.dali_fault.__wrapped__)  # not what was found before
    train = tb.from_tfrecords(photographs, recipe=dali_pipe.crop_train(16, "uint8"), batch_size=25, seed=0)
    assert train.engine == "tfdata" and train.reason.startswith("DALI cannot be loaded: ")
    assert sorted(int(label) for _, labels in train for label in labels) == list(range(50))


@pytest.mark.slow
def test_after_keras_its_layers_are_known_to_keras() -> None:
    code = "import keras, tf_bridge; assert 'dali_tf_bridge>Preprocess' in keras.saving.get_custom_objects()"
    assert support.run_python(code).returncode == 0
