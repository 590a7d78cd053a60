"""The contact sheet shows what the network sees."""

import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import dali_pipe as dp
import tf_bridge as tb
from dali_pipe import records as records_lib
from tests import odd_images, support
from tf_bridge import cli, cli_data, preview, sheet
from tf_bridge.sheet import Box

RECIPE = dp.crop_train(40, "uint8")


def run(*arguments: str | Path) -> int:
    return cli.main(["preview", *map(str, arguments)])


def crop(page: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    return page[box.top : box.bottom, box.left : box.right]


def read(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image)


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_augmented_tiles_are_the_first_batch_of_training(
    tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, dtype: str
) -> None:
    """Float recipes too: their normalisation is undone, to the grey level."""
    png = tmp_path / "made" / "sheet.png"
    options = ["--size", "40", "--count", "6", "--seed", "5", "--epoch", "2", "--engine", engine, "--dtype", dtype]
    assert run(tfds_folder, *options, "--output", png) == 0
    told = capsys.readouterr().out
    assert f"{engine} on cpu" in told
    assert "6 of 203 images" in told

    training = tb.from_tfds(tfds_folder, split="train", recipe=RECIPE, batch_size=16, seed=5, engine="tfdata")
    training.set_epoch(2)
    images = next(iter(training))[0].numpy()
    page, plan = read(png), preview.layout(6, RECIPE)
    assert page.shape[:2] == plan.size[::-1]
    for k in range(6):
        tile = crop(page, plan.augmented(k))
        assert np.array_equal(tile, images[k].repeat(3, 0).repeat(3, 1)), k


def test_the_window_is_what_was_cut_out(photographs: list[Path]) -> None:
    records = records_lib.from_files(photographs)
    dataset = preview.beginning(records, RECIPE, 12, seed=3, engine="dali", device="cpu")
    samples = preview.samples(dataset)
    assert [s.label for s in samples] == [str(s.id) for s in samples]  # labels are ids in these files
    for sample in samples:
        assert sample.window is not None
        y, x, height, width = sample.window
        assert np.array_equal(sample.augmented, sample.original[y : y + height, x : x + width])


def test_a_recipe_that_does_not_begin_with_a_crop_has_no_window(photographs: list[Path]) -> None:
    recipe = dp.Recipe((dp.Resize(40), dp.RandomFlip()), "uint8")
    records = records_lib.from_files(photographs)
    samples = preview.samples(preview.beginning(records, recipe, 4, engine="tfdata"))
    assert {s.window for s in samples} == {None}
    page = np.asarray(preview.draw(samples, recipe, "title", "details").image)
    assert not (page == sheet.MARK).all(-1).any()


def test_where_the_window_is_drawn() -> None:
    black = np.zeros((100, 200, 3), np.uint8)
    sample = preview.Sample(7, "night", black, (10, 20, 50, 60), np.full((40, 40, 3), 9, np.uint8))
    page = np.asarray(preview.draw([sample], RECIPE, "", "").image)
    left, top, *_ = preview.layout(1, RECIPE).original(0)
    assert tuple(page[top, left]) == sheet.FRAME  # letterboxed: 200x100 is drawn as 120x60 in 120x120
    image = page[top + 30 : top + 90, left : left + 120]
    marked = (image == sheet.MARK).all(-1)
    expected = np.zeros_like(marked)
    expected[6 - 3 : 36 + 3, 12 - 3 : 48 + 3] = True  # around 0.6 of the window, a dark pixel between
    expected[6 - 1 : 36 + 1, 12 - 1 : 48 + 1] = False
    assert np.array_equal(marked, expected)
    assert (image[6:36, 12:48] == 0).all()


def test_labels_stand_under_the_tiles() -> None:
    """Sheets that differ in one label differ under its tiles, and nowhere else."""

    def page(label: str) -> NDArray[np.uint8]:
        black, white = np.zeros((50, 60, 3), np.uint8), np.full((40, 40, 3), 255, np.uint8)
        samples = [preview.Sample(k, name, black, None, white) for k, name in enumerate(["cat", label])]
        return np.asarray(preview.draw(samples, RECIPE, "title", "details").image)

    different = (page("dog") != page("a very long class name")).any(-1)
    plan = preview.layout(2, RECIPE)
    left, right = plan.original(1), plan.augmented(1)
    rows, columns = different.any(1).nonzero()[0], different.any(0).nonzero()[0]
    assert left.bottom < rows[0] < rows[-1] < left.bottom + 40
    assert left.left <= columns[0] < columns[-1] < right.right
    assert (page("dog") == page("dog")).all()


@pytest.mark.parametrize("size", [(8, 8), (40, 40), (160, 160), (100, 700), (900, 300)])
@pytest.mark.parametrize("count", [1, 2, 7, 16, 61])
def test_nothing_overlaps(count: int, size: tuple[int, int]) -> None:
    plan = preview.layout(count, dp.crop_train(size, "uint8"))
    boxes = [tile(k) for k in range(count) for tile in (plan.original, plan.augmented)]
    width, height = plan.size
    for box in boxes:
        assert 0 < box.left < box.right < width and 0 < box.top < box.bottom < height
    for a, b in combinations(boxes, 2):
        apart = a.right < b.left or b.right < a.left, a.bottom + 20 < b.top or b.bottom + 20 < a.top
        assert any(apart), (a, b)  # with room for a caption between rows


def test_tfrecords_and_more_images_than_there_are(photographs: list[Path], tmp_path: Path) -> None:
    png = tmp_path / "sheet.png"
    pattern = photographs[0].parent / "data.tfrecord-*"
    assert run(pattern, "--recipe", "imagenet", "--size", "24", "--count", "99", "--output", png) == 0
    assert read(png).shape[:2] == preview.layout(50, dp.imagenet_train(24)).size[::-1]


OWN = """
import dali_pipe as dp
from sizes import SIDE

train = dp.Recipe((dp.RandomCrop((SIDE, 48)), dp.Normalize()))
number = 7
"""


@pytest.fixture
def augment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, the current one, with the user's recipes and what they import."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "augment.py").write_text(OWN)
    (tmp_path / "sizes.py").write_text("SIDE = 40")
    (tmp_path / "bare.py").write_text("import dali_pipe as dp")
    (tmp_path / "broken.py").write_text("import dali_pipe as dp\ntrain = dp.Recipe(\n")
    (tmp_path / "program.py").write_text("raise SystemExit(0)")
    yield tmp_path
    for name in ("augment", "sizes", "bare", "broken", "program"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("command", "place"),
    [("preview", "augment:train"), ("preview", "FOLDER/augment.py:train"), ("parity", "augment:train")],
)
def test_a_recipe_of_the_user_s_own(
    augment: Path, photographs: list[Path], capsys: pytest.CaptureFixture[str], command: str, place: str
) -> None:
    place = place.replace("FOLDER", str(augment))
    pattern = str(photographs[0].parent / "data.tfrecord-*")
    json = ["--json"] * (command == "parity")
    assert cli.main([command, pattern, "--recipe", place, "--count", "2", "--output", "made.png", *json]) == 0
    if command == "preview":
        recipe = dp.Recipe((dp.CenterCrop((40, 48)),))
        assert read(augment / "made.png").shape[:2] == preview.layout(2, recipe).size[::-1]
    else:
        told = capsys.readouterr().out
        assert '"size": [\n    40,\n    48\n  ]' in told and "decode + RandomCrop" in told


@pytest.mark.parametrize("command", ["preview", "parity"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["imagnet"], "`--recipe` must be crop, imagenet, MODULE:NAME or FILE.py:NAME. Received: 'imagnet'"),
        (["gone.py:train"], "a file or module that Python can run. Received: 'gone.py:train' (FileNotFoundError: "),
        (["gone:train"], "Received: 'gone:train' (ModuleNotFoundError: No module named 'gone'). Give the path of its"),
        (["broken.py:train"], "Received: 'broken.py:train' (SyntaxError: "),
        (["program.py:train"], "Received: 'program.py:train' (SystemExit: 0)"),
        (
            ["augment:number"],
            "a dali_pipe.Recipe. Received: 'augment:number', which is of type int. Recipes there: train.",
        ),
        (["augment:trian"], "Received: 'augment:trian', which is not there. Recipes there: train."),
        (["bare.py:train"], "which is not there. Write `train = dali_pipe.Recipe(...)` there."),
        (["augment:train", "--size", "40"], "`--size` must be left out with a recipe of your own, which has its size."),
    ],
)
def test_what_is_no_recipe_is_one_line(
    augment: Path, capsys: pytest.CaptureFixture[str], command: str, options: list[str], told: str
) -> None:
    try:
        code = cli.main([command, "--recipe", *options])
    except SystemExit as stop:  # argparse's own
        code = int(stop.code or 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and told in line


@pytest.mark.parametrize("command", ["train", "bench"])
def test_train_and_bench_take_presets_only(tfds_folder: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert cli.main([command, str(tfds_folder), "--recipe", "augment:train"]) == 2
    told = "`--recipe` must be crop or imagenet here; preview and parity take your own. Received: 'augment:train'\n"
    assert capsys.readouterr().err.endswith(told)


@pytest.mark.parametrize("command", ["preview", "parity"])
def test_bad_records_are_left_out_as_in_training(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Images that cannot be decoded, too; what is left is what the share is of."""
    images = [support.photograph(k, 60, 60) for k in range(6)]
    support.write_shards(tmp_path, [*images, b"", odd_images.IMAGES["truncated_half"]], shards=1)
    options = [command, f"{tmp_path}/data*", "--size", "24", "--output", str(tmp_path / "sheet.png")]
    assert cli.main(options) == 2
    assert "Leave such records out with --on-error=skip" in capsys.readouterr().err
    assert cli.main([*options, "--on-error", "skip"]) == 2
    assert "`--max-bad` allows 1.00%" in capsys.readouterr().err
    assert cli.main([*options, "--on-error", "skip", "--max-bad", "0.5"]) == 0
    assert "6 of 6 images" in capsys.readouterr().out


def test_without_data_it_is_the_embedded_set(
    tfds_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_data, "embedded", lambda: tfds_folder)
    assert run("--size", "40", "--count", "1", "--output", tmp_path / "sheet.png") == 0


def test_captions_name_classes() -> None:
    records = records_lib.Records((), np.empty(0, records_lib.RECORD), dp.Schema(), classes=("cat", "dog"))
    assert [cli_data.label_name(records, label) for label in (-1, 0, 1, 2)] == ["-1", "cat", "dog", "2"]


def test_words_fit_and_have_letters() -> None:
    assert sheet.drawable("Bézier × 日本 · 1…") == "Bezier x ?? · 1..."
    long = "a very long class name, as WordNet has them"
    short = sheet.shortened(long, 15, 120)
    assert short.endswith("…") and long.startswith(short[:-1])
    assert 80 < sheet.font(15).getlength(short) <= 120
    assert sheet.shortened("cat", 15, 120) == "cat"
    assert sheet.shortened(long, 15, -3) == ""


@pytest.mark.parametrize(
    ("size", "drawn"), [((8, 8), (120, 120)), ((160, 120), (160, 120)), ((512, 256), (256, 128)), ((1, 900), (1, 256))]
)
def test_tiles_keep_their_pixels_where_they_can(size: tuple[int, int], drawn: tuple[int, int]) -> None:
    assert sheet.tile_size(*size, preview.SMALLEST, preview.LARGEST) == drawn


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/such/thing"], ["`data` must be", "no/such/thing"]),
        (["FOLDER", "--split", "train[:0]"], ["no record to read"]),
        (["FOLDER", "--engine", "tfdata", "--device", "gpu"], ["needs --engine=dali"]),
        (["FOLDER", "--count", "0"], ["must be a positive int"]),
        (["FOLDER", "--epoch", "-1"], ["must be 0 or a positive int"]),
        (["FOLDER", "--seed", "-1"], ["`--seed` must be"]),
        (["FOLDER", "--output", "sheet.jpg"], ["must be a file that ends in .png"]),
        (["BROKEN", "--engine", "tfdata"], ["tfdata on cpu stopped: ", "00000-of-00001, record at byte 0", "jpeg::"]),
        (
            ["BROKEN", "--engine", "dali"],
            ["--on-error=skip", "00000-of-00001, record at byte 0", "cannot be decoded by", "DALI"],
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    photograph = support.photograph(0, 60, 60)
    support.write_shards(tmp_path, [photograph[: len(photograph) // 2]], shards=1)
    places = {"FOLDER": str(tfds_folder), "BROKEN": f"{tmp_path}/data.tfrecord-*"}
    output = [] if "--output" in arguments else ["--output", str(tmp_path / "sheet.png")]
    try:
        code = run(*[places.get(a, a) for a in arguments], "--size", "40", *output)
    except SystemExit as stop:  # argparse's own
        code = int(stop.code or 0)
    told = capsys.readouterr().err
    assert code == 2
    assert all(word in told.splitlines()[-1] for word in words), told
    assert "Traceback" not in told.splitlines()[-1]
    assert not (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("command", ["preview", "parity"])
def test_help_imports_nothing_heavy(command: str) -> None:
    done = support.run_python(
        "import sys\nfrom tf_bridge import cli\n"
        f"try: cli.main(['{command}', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'tensorflow', 'keras', 'nvidia.dali', 'numpy', 'PIL'} & set(sys.modules), 'heavy'"
    )
    assert done.returncode == 0, done.stderr
    assert "--recipe" in done.stdout and f"{command}.png" in done.stdout
