"""The profile is one that the input-pipeline page can be made of."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.profiler.internal import _pywrap_profiler_plugin

from tf_bridge import cli
from tf_bridge.profiling import STEPS, StepProfile


def fit(folder: Path, epochs: int, steps: int, epoch: int = 1) -> StepProfile:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = tf.data.Dataset.from_tensors((np.ones((4, 3), np.float32), np.ones((4, 1), np.float32))).repeat(steps)
    profile = StepProfile(folder, epoch)
    model.fit(batches.map(lambda x, y: (x + 1, y)), epochs=epochs, shuffle=False, verbose=0, callbacks=[profile])
    return profile


def page(folder: Path) -> bytes:
    """What the profiler makes of the profile for its input-pipeline page."""
    (trace,) = folder.glob("plugins/profile/*/*.xplane.pb")
    made, ok = _pywrap_profiler_plugin.xspace_to_tools_data([str(trace)], "input_pipeline_analyzer")
    assert ok
    return bytes(made)


@pytest.mark.parametrize("steps", [12, 2])
def test_the_input_pipeline_page_has_steps_and_iterators(tmp_path: Path, steps: int) -> None:
    assert fit(tmp_path, 3, steps).done
    made = page(tmp_path)
    assert re.search(rb"Iterator::Root", made)
    assert made.count(b"PerGenericStepDetails") == min(STEPS, steps)


def test_no_profile_of_an_epoch_that_never_came(tmp_path: Path) -> None:
    assert not fit(tmp_path, 1, 2).done
    assert not list(tmp_path.iterdir())


def test_the_first_epoch_where_it_is_the_only_one(tmp_path: Path) -> None:
    assert fit(tmp_path, 1, 8, epoch=0).done
    assert b"Iterator::Root" in page(tmp_path)


@pytest.mark.slow
def test_train_writes_one_and_says_how_to_open_it(
    tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--size", "32", "--epochs", "2", "--batch-size", "16", "--validation", "none", "--split", "train[:96]"]
    assert cli.main(["train", str(tfds_folder), *small, "--profile", "--output", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"tensorboard --logdir {tmp_path / 'logs'}: tab Profile, tool input_pipeline_analyzer" in told
    assert "input_wait: 0." in told
    assert page(tmp_path / "logs").count(b"PerGenericStepDetails") == STEPS
    assert (tmp_path / "logs" / "input" / "input.csv").is_file()
