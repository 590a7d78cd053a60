"""The command line, as a user runs it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
from tests import odd_images, support
from tf_bridge import cli

SMALL = ["--size", "32", "--width", "16", "--epochs", "2", "--batch-size", "16"]


def run(*arguments: str | Path) -> int:
    return cli.main([str(a) for a in arguments])


def small_network(classes: int, *, recipe: dp.Recipe, width: int) -> Any:
    """In the place of ResNet-18, which takes seconds to compile."""
    import keras

    from tf_bridge.keras_layers import Preprocess

    layers = [Preprocess(recipe), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input(recipe.output_shape, dtype=recipe.dtype), *layers])


def test_train_on_a_tfds_folder(tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import keras

    assert run("train", tfds_folder, *SMALL, "--output", tmp_path / "run") == 0
    told = capsys.readouterr().out
    assert "203 images to train, 37 to validate, 10 classes" in told
    assert "dali on cpu" in told
    assert "images/s" in told and "val_accuracy" in told
    model = keras.saving.load_model(tmp_path / "run" / "best.keras")
    assert model(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 10)
    assert (tmp_path / "run" / "last.keras").is_file()
    assert list((tmp_path / "run" / "logs").rglob("events.out.tfevents*"))


@pytest.mark.slow
def test_train_on_tfrecords_as_imagenet_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payloads = [
        support.example({"image/encoded": support.photograph(k, 60, 50), "image/class/label": 1 + k % 3})
        for k in range(40)
    ]
    support.write_shard(tmp_path / "train-00000-of-00001", payloads)
    support.write_shard(tmp_path / "validation-00000-of-00001", payloads[:10])
    keys = ["--image-key", "image/encoded", "--label-key", "image/class/label", "--label-offset", "1"]
    code = run(
        "train", f"{tmp_path}/train-*", "--validation", f"{tmp_path}/validation-*", *keys, *SMALL,
        "--recipe", "imagenet", "--engine", "tfdata", "--dtype", "float32", "--output", tmp_path / "run",
    )  # fmt: skip
    told = capsys.readouterr().out
    assert code == 0
    assert "40 images to train, 10 to validate, 3 classes" in told
    assert "tfdata on cpu" in told


@pytest.mark.slow
def test_train_without_validation_in_mixed_precision(
    tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import keras

    try:
        code = run(
            "train", tfds_folder, *SMALL, "--validation", "none", "--mixed-precision", "--output", tmp_path / "run"
        )
    finally:
        keras.config.set_dtype_policy("float32")
    assert code == 0
    assert "0 to validate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "no/such/thing"], ["`data` must be", "no/such/thing"]),
        (["train", "FOLDER", "--split", "trian"], ["`--split` must name a split", "train, validation"]),
        (["train", "FOLDER", "--device", "gpu"], ["needs a GPU"]),
        (["train", "FOLDER", "--image-key", "picture"], ["no feature 'picture'", "'image'"]),
        (["train", "FOLDER", "--batch-size", "1000"], ["`--batch-size` must not exceed"]),
        (["train", "FOLDER", "--batch-size", "-1"], ["must be a positive int"]),
        (["train", "FOLDER", "--width", "8"], ["`--width` must be a multiple of 16"]),
        (["train", "FOLDER", "--engine", "torch"], ["`--engine` must be auto, dali or tfdata. Received: 'torch'"]),
        (["train", "FOLDER", "--seed", "x"], ["`--seed` must be an int. Received: 'x'. See `dali-tf train --help`."]),
        (["train", "--batchsize=3"], ["`dali-tf train` takes no `--batchsize=3`. Did you mean `--batch-size`?"]),
        (["trian"], ["`COMMAND` must be train,", "Received: 'trian'. Did you mean `train`? See `dali-tf --help`."]),
        ([], ["`dali-tf` needs COMMAND."]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tfds_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.setattr("dali_pipe.device.dali_gpu_count", lambda: 0)
    try:
        code = run(*[str(tfds_folder) if a == "FOLDER" else a for a in arguments])
    except SystemExit as stop:  # argparse's own
        code = int(stop.code or 0)
    told = capsys.readouterr().err
    assert code == 2
    assert len(told.splitlines()) == 1 and told.startswith("dali-tf: error: ")
    assert all(word in told.splitlines()[-1] for word in words), told


@pytest.mark.parametrize("engine", ["dali", "tfdata"])
@pytest.mark.parametrize(
    "damaged", [odd_images.IMAGES["truncated_half"], odd_images.without_table()], ids=["truncated", "within"]
)
def test_a_damaged_image_is_one_line_that_names_the_record(
    damaged: bytes, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Met when the data set is made, or in the middle of `fit`."""
    monkeypatch.setattr("tf_bridge.train.resnet18", small_network)
    images = [support.photograph(k, 60, 50) for k in range(8)]
    images[5] = damaged
    (shard,) = support.write_shards(tmp_path, images, [k % 2 for k in range(8)], shards=1)
    options = [*SMALL, "--batch-size", "8", "--epochs", "1", "--engine", engine]
    assert run("train", shard, *options, "--output", tmp_path / "run") == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1 and told.startswith("dali-tf: error: ")
    for words in (f"{shard}, record at byte ", "record 5 of its split", "--on-error=skip"):
        assert words in told


@pytest.mark.parametrize("no_color", ["", "1"])
def test_train_s_bar_is_for_terminals_with_colours(
    no_color: str, tfds_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tf_bridge.train.resnet18", small_network)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stdout", terminal := support.Terminal())
    options = [*SMALL, "--epochs", "1", "--split", "train[:32]", "--validation", "none"]
    assert run("train", tfds_folder, *options, "--output", tmp_path) == 0
    assert ("\033[" in terminal.getvalue()) == (not no_color)
    assert "input_wait" in terminal.getvalue()


def test_ctrl_c_leaves_a_model_that_loads(tfds_folder: Path, tmp_path: Path) -> None:
    import keras

    import tf_bridge.keras_layers  # noqa: F401  (the model holds a `Preprocess`)

    run_folder = tmp_path / "run"
    command = [sys.executable, "-m", "tf_bridge.cli", "train", str(tfds_folder), *SMALL, "--epochs", "500"]
    process = subprocess.Popen(
        [*command, "--output", str(run_folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + 90
        while not (run_folder / "best.keras").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, told
    assert "Interrupted" in told and "Traceback" not in told
    model = keras.saving.load_model(run_folder / "last.keras")
    assert model.count_params() > 0


def test_help_is_quick_to_import_nothing_heavy() -> None:
    done = support.run_python(
        "import sys\nfrom tf_bridge import cli\n"
        "try: cli.main(['train', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'tensorflow', 'keras', 'nvidia.dali', 'numpy'} & set(sys.modules), 'heavy'"
    )
    assert done.returncode == 0, done.stderr
    assert "--batch-size" in done.stdout


@pytest.mark.slow
def test_train_without_arguments_learns(tmp_path: Path) -> None:
    """The README's first command, as it stands."""
    done = subprocess.run(
        [sys.executable, "-m", "tf_bridge.cli", "train", "--output", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=600, env={**os.environ, "DALI_TF_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Result:")]
    assert float(line.split()[2]) >= 0.6
    assert "2000 images to train, 500 to validate, 10 classes" in done.stdout
