"""`dali-tf parity` says how far engines are apart, and notices one that is broken."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import dali_pipe as dp
import tf_bridge as tb
from dali_pipe import ops, pipeline
from dali_pipe import records as records_lib
from tests import support
from tf_bridge import choice, cli, parity, parity_command, parity_layers, parity_sheet, sheet
from tf_bridge.parity import Engine, Pair, Row

DALI = Engine("dali", "cpu")
SMALL = ["--size", "24", "--count", "40"]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dali_pipe.device.dali_gpu_count", lambda: 0)


@pytest.fixture(scope="module")
def records(photographs: list[Path]) -> dp.Records:
    return records_lib.from_files(photographs)


def run(*arguments: str | Path) -> int:
    return cli.main(["parity", *map(str, arguments)])


def cells(printed: str) -> list[list[str]]:
    """The table, columns being at least two spaces apart."""
    lines = printed.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("layer "))
    end = lines.index("", first)
    return [[cell for cell in line.split("  ") if cell] for line in lines[first:end]]


def test_the_table_of_a_users_data(tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png = tmp_path / "made" / "parity.png"
    assert run(tfds_folder, "--recipe", "imagenet", *SMALL, "--output", png) == 0
    printed = capsys.readouterr().out
    assert "40 of 203 images, seed 0, epoch 0" in printed
    header, *rows = [[cell.strip() for cell in line] for line in cells(printed)]
    assert header == ["layer", "engine", "largest", "mean", "differ", "labels", "bound"]
    assert [row[0] for row in rows] == ["decode + RandomResizedCrop", "+ RandomFlip", "whole recipe, float32"]
    for row in rows:
        assert row[1] == "dali on cpu" and row[5] == "equal" and row[7] == "ok"
        assert float(row[2]) <= float(row[6])
    assert [row[6] for row in rows] == ["1", "1", "0.0175"]
    with Image.open(png) as image:
        assert image.format == "PNG"


def test_progress_is_for_terminals_and_goes(
    tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command: list[str | Path] = [tfds_folder, *SMALL, "--json", "--output", tmp_path / "parity.png"]
    assert run(*command) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr", terminal := support.Terminal())
    assert run(*command) == 0
    assert "Comparing: 100%" in terminal.getvalue() and terminal.getvalue().endswith("\r")
    assert json.loads(capsys.readouterr().out)["ok"]


def test_every_op_is_within_its_bound(records: dp.Records) -> None:
    """The last batch is partial; images smaller than the first crop are among them."""
    recipe = dp.Recipe(
        (
            dp.RandomCrop(60), dp.RandomErasing(1.0), dp.RandomRotation(), dp.RandomHue(), dp.Resize(32),
            dp.Normalize(),
        ),
        label=dp.OneHot(50, smoothing=0.1),
        mix=dp.MixUp(),
    )  # fmt: skip
    rows = parity.compare(records, recipe, seed=7, epoch=1, batch_size=16)
    assert [row.bound for row in rows[:-1]] == [1, 1, 2, 3, 4]
    for row in rows:
        assert row.ok, row
        assert row.images == 50 and row.engine == DALI
        assert len(row.worst) == 3
    assert rows[1].largest <= 1 and rows[-2].differing > 0  # something differs, so the numbers mean something


def test_the_numbers_are_those_of_the_whole_epoch(records: dp.Records, monkeypatch: pytest.MonkeyPatch) -> None:
    _break_flip(monkeypatch)
    recipe = dp.Recipe((dp.Resize(24), dp.RandomFlip(), dp.Normalize()), "float32")
    *_, row = parity.compare(records, recipe, seed=3, epoch=2, batch_size=16, keep=4)
    options: dict[str, Any] = {"recipe": recipe, "batch_size": 50, "seed": 3, "drop_remainder": False, "device": "cpu"}
    images, labels = {}, {}
    for engine in ("tfdata", "dali"):
        dataset = tb.from_records(records, engine=engine, **options)
        dataset.set_epoch(2)
        ((images[engine], labels[engine]),) = list(dataset.as_numpy_iterator())
    difference = np.abs(images["tfdata"] - images["dali"])
    assert row.largest == difference.max() > 1
    assert row.mean == pytest.approx(difference.mean(dtype=np.float64))
    assert row.differing == np.count_nonzero(difference) / difference.size
    assert not row.ok

    largest, mean = difference.max((1, 2, 3)), difference.mean((1, 2, 3), dtype=np.float64)
    worst = sorted(range(50), key=lambda k: (-largest[k], -mean[k]))[:4]
    assert [pair.label for pair in row.worst] == labels["tfdata"][worst].tolist()
    for k, pair in zip(worst, row.worst, strict=True):
        assert pair.id == pair.label  # labels are ids in these files
        assert np.array_equal(pair.reference, images["tfdata"][k])
        assert np.array_equal(pair.image, images["dali"][k])


def _break_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pipeline._LOWERINGS, ops.RandomFlip, lambda image, step: image)


def test_a_broken_engine_fails(
    tfds_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _break_flip(monkeypatch)
    png = tmp_path / "parity.png"
    assert run(tfds_folder, "--recipe", "imagenet", "--dtype", "uint8", *SMALL, "--output", png) == 1
    _, *rows = cells(capsys.readouterr().out)
    assert [row[-1].strip() for row in rows] == ["ok", "FAIL", "FAIL"]
    assert float(rows[1][2]) > 50
    assert png.is_file()


def test_json(tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png = tmp_path / "parity.png"
    options: list[str | Path] = ["--dtype", "uint8", "--seed", "1", "--epoch", "4", "--output", png]
    assert run(tfds_folder, *SMALL, *options, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    rows = told.pop("rows")
    assert told == {
        "ok": True, "recipe": "crop", "size": 24, "dtype": "uint8", "seed": 1, "epoch": 4,
        "reference": "tf.data on cpu", "picture": str(png),
    }  # fmt: skip
    assert [row.pop("layer") for row in rows] == ["decode + RandomCrop", "whole recipe, uint8"]
    for row in rows:
        assert row == {
            "engine": "dali on cpu", "images": 40, "largest": 0, "mean": 0, "differing": 0, "labels_equal": True,
            "bound": 0, "ok": True,
        }  # fmt: skip


def test_wrong_labels_fail(records: dp.Records, monkeypatch: pytest.MonkeyPatch) -> None:
    right = pipeline._label
    monkeypatch.setattr(pipeline, "_label", lambda ticket, recipe: right(ticket, recipe) + 1)
    for row in parity.compare(records.take(5), dp.crop_train(24)):
        assert row.largest <= row.bound and not row.labels_equal and not row.ok
        assert "DIFFER" in parity_command.table([row]) and "FAIL" in parity_command.table([row])


def test_an_image_that_is_no_number_fails() -> None:
    tally = parity._Tally(1)
    one = np.ones((1, 2, 2, 3), np.float32)
    tally.add([0], (one, np.zeros(1)), (one * np.nan, np.zeros(1)))
    row = tally.row(parity_layers.Layer("broken", dp.crop_train(2)), DALI, 1.0)
    assert row.largest == np.inf and not row.ok
    assert "inf" in parity_command.table([row])


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ((dp.CenterCrop(8),), ["decode + CenterCrop"]),
        ((dp.ResizeShorter(9), dp.CenterCrop(8)), ["decode + ResizeShorter + CenterCrop"]),
        (
            (dp.RandomFlip(), dp.Pad(1), dp.Resize(8), dp.Grayscale(), dp.Pad(1)),
            ["decode + RandomFlip + Pad + Resize", "+ Grayscale", "+ Pad"],
        ),
    ],
)
def test_layers(steps: tuple[dp.Op, ...], names: list[str]) -> None:
    recipe = dp.Recipe((*steps, dp.Normalize()), "float16", dct="fast", exif=True, label=dp.OneHot(3), mix=dp.CutMix())
    *beginnings, whole = parity_layers.layers(recipe)
    assert [layer.name for layer in beginnings] == names
    assert whole == ("whole recipe, float16", recipe)
    for layer in beginnings:
        made = layer.recipe
        assert made.dtype == "uint8" and made.dct == "fast" and made.exif and made.mix is None
        assert made.ops == steps[: len(made.ops)]
    assert beginnings[-1].recipe.ops == steps


LARGE, TINY = np.array([[50, 60]]), np.array([[50, 60], [7, 60]])


@pytest.mark.parametrize(
    ("recipe", "sizes", "levels"),
    [
        (dp.Recipe((dp.RandomCrop(8), dp.RandomFlip(), dp.Pad(1), dp.RandomErasing()), "uint8"), LARGE, 0),
        (dp.Recipe((dp.RandomCrop(8), dp.RandomFlip()), "uint8"), TINY, 1),
        (dp.Recipe((dp.ResizeShorter(9), dp.CenterCrop(8), dp.RandomHue()), "uint8"), LARGE, 2),
        (dp.Recipe((dp.Resize(9), dp.RandomRotation(), dp.Grayscale(), dp.RandomBrightness()), "uint8"), LARGE, 3),
        (dp.imagenet_train(8, "uint8"), LARGE, 1),
    ],
)
def test_bounds_in_grey_levels(recipe: dp.Recipe, sizes: np.ndarray, levels: int) -> None:
    assert parity_layers.bound(recipe, sizes) == levels
    assert parity_layers.bound(recipe, sizes, nvjpeg=True) > levels


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (dp.crop_train(8), 1e-6),
        (dp.imagenet_train(8), 1 / (0.224 * 255) + 1e-6),
        (dp.imagenet_train(8, "float16"), 1 / (0.224 * 255) + 2.0**-10 * (1 - 0.406) / 0.225),  # a step of float16
        (dp.Recipe((dp.CenterCrop(8),), "float32"), 2.0**-23 * 255),  # values up to 255
    ],
)
def test_bounds_of_floats(recipe: dp.Recipe, expected: float) -> None:
    assert parity_layers.bound(recipe, LARGE) == pytest.approx(expected, rel=1e-3)


def test_engines_follow_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parity.engines() == [DALI]
    monkeypatch.setattr("dali_pipe.device.dali_gpu_count", lambda: 1)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
    assert parity.engines() == [DALI, Engine("dali", "gpu")]
    monkeypatch.setattr(choice, "dali_fault", lambda: "no such module")
    with pytest.raises(ImportError, match=r"DALI cannot be loaded \(no such module\)"):
        parity.engines()


def test_without_dali_it_is_one_line_and_exit_code_2(
    tfds_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choice, "dali_fault", lambda: "no such module")
    assert run(tfds_folder, *SMALL, "--output", tmp_path / "parity.png") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("dali-tf: error: There is no engine")
    assert not list(tmp_path.iterdir())


def test_records_are_taken_from_all_over(records: dp.Records) -> None:
    assert parity_command.spread(records, 4).ids.tolist() == [0, 12, 25, 37]
    assert parity_command.spread(records, 49).ids.tolist() == list(range(49))
    assert parity_command.spread(records, 50).ids.tolist() == parity_command.spread(records, 99).ids.tolist()


def _row(**changes: Any) -> Row:
    reference = np.random.default_rng(0).integers(0, 200, (40, 30, 3), dtype=np.uint8)
    image = reference.copy()
    image[5, 7, 1] += 2
    image[6, 7, 2] += 1
    settings: dict[str, Any] = {
        "layer": "decode + CenterCrop", "engine": DALI, "images": 1, "largest": 2.0, "mean": 0.1, "differing": 1e-5,
        "labels_equal": True, "bound": 0, "recipe": dp.Recipe((dp.CenterCrop((40, 30)),), "uint8"),
        "worst": (Pair(0, 0, reference, image, 2.0, 0.1),),
    }  # fmt: skip
    return Row(**{**settings, **changes})


def test_the_picture_shows_both_images_and_their_difference(records: dp.Records) -> None:
    row = _row()
    (pair,) = row.worst
    page = np.asarray(parity_sheet.draw([row, row], records, "title", "details").image)
    boxes = parity_sheet.Layout([row, row])
    for place in range(2):
        reference, image, difference = (
            page[b.top : b.bottom, b.left : b.right][1::3, 1::3] for b in boxes.triple(place, 0)
        )  # 30x40 is drawn as 90x120
        assert np.array_equal(reference, pair.reference)
        assert np.array_equal(image, pair.image)
        assert difference[5, 7].tolist() == [255] * 3  # 2 levels x128 are the most
        assert difference[6, 7].tolist() == [128] * 3
        assert np.count_nonzero(difference) == 6


def test_verdicts_are_coloured(records: dp.Records) -> None:
    good, bad = _row(bound=2), _row()
    for row, color, other in ((good, sheet.GOOD, sheet.BAD), (bad, sheet.BAD, sheet.GOOD)):
        page = np.asarray(parity_sheet.draw([row], records, "", "").image)
        assert (page == color).all(-1).any() and not (page == other).all(-1).any()


def test_amplification() -> None:
    zero = np.zeros((1, 2, 3), np.float32)
    shown, factor = parity_sheet.amplified(zero, zero + np.array([[[0, 0, 0], [0, 4, 2]]]))
    assert factor == 64 and shown[0, :, 0].tolist() == [0, 255]
    assert parity_sheet.amplified(zero, zero)[0].max() == 0
    shown, factor = parity_sheet.amplified(zero, zero + 1e-4)  # float noise stays dark
    assert factor == 255 and shown.max() == 0
    assert parity_sheet.amplified(zero, zero + np.float32(np.nan))[0].min() == 255


def test_percent() -> None:
    assert [parity_sheet.percent(share) for share in (0, 1e-6, 0.01234, 1)] == ["0 %", "0.0001 %", "1.23 %", "100 %"]


def test_an_image_that_cannot_be_decoded_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photograph = support.photograph(0, 60, 60)
    support.write_shards(tmp_path, [photograph[: len(photograph) // 2]], shards=1)
    assert run(f"{tmp_path}/data.tfrecord-*", "--size", "24", "--output", tmp_path / "parity.png") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dali-tf: error")]
    assert "jpeg::Uncompress failed" in line
    assert not (tmp_path / "parity.png").exists()
