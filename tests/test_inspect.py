"""`dali-tf inspect` finds what was put into a data set, and says what to do about it."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from dali_pipe import advice, sources, survey, tfds_source
from dali_pipe.advice import Case
from dali_pipe.duplicates import duplicates, suspects
from dali_pipe.scan import Schema
from dali_pipe.summary import PERCENTILES, Summary, summarize
from dali_pipe.survey import Field, Source, Survey
from tests import odd_images, support
from tf_bridge import cli, inspect_command, inspect_features, inspect_page, inspect_text
from tf_bridge.cli_parser import commands

KINDS = ("plain", "progressive", "gray", "cmyk", "png", "webp", "exif_orientation_6", "exif_orientation_3")
PLAIN = 40  # photographs in the training shards, beside one of each of `KINDS`


def record(image: bytes, label: int, name: str, boxes: int = 0) -> bytes:
    features: dict[str, support.Value] = {"image/encoded": image, "image/class/label": label}
    features |= {"image/filename": name.encode(), "image/bbox": [0.5] * boxes if boxes else [0.0]}
    return support.example(features)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet's keys; labels 1 to 4 in order; every kind of image; a bad record, a broken shard, copies."""
    folder = tmp_path_factory.mktemp("odd")
    photographs = [support.photograph(k, 60 + k, 90) for k in range(PLAIN)]
    images = photographs + [odd_images.IMAGES[kind] for kind in KINDS]
    names = [f"{k}.JPEG" for k in range(PLAIN)] + [f"{kind}.jpg" for kind in KINDS]
    payloads = [record(image, 1 + 4 * k // len(images), names[k], boxes=k % 4) for k, image in enumerate(images)]
    payloads.append(record(photographs[0], 4, "copy.jpg"))  # of another class, too
    payloads.append(record(odd_images.IMAGES["garbage"], 4, "bad.jpg"))
    support.write_shard(folder / "train-00000-of-00002", payloads[:25])
    support.write_shard(folder / "train-00001-of-00002", payloads[25:])
    leak = [record(photographs[k], 1, f"{k}.jpg") for k in (3, 4)]
    support.write_shard(folder / "validation-00000-of-00001", [*leak, record(support.photograph(99, 70, 70), 2, "n")])
    whole = support.write_shard(folder / "broken", payloads).read_bytes()
    (folder / "broken").write_bytes(whole[: len(whole) // 2])
    return folder


def look(*files: Path, schema: Schema | None = None) -> Survey:
    """The survey of plain files, each its own split."""
    schema = schema or Schema(image_key="image/encoded", label_key="image/class/label", label_offset=1)
    return survey.survey([Source(path.name, path) for path in files], schema, (), 2, lambda count: None)


def figures(found: Survey) -> Summary:
    return summarize(found, duplicates(found, suspects(found), lambda count: None))


def run(*arguments: str | Path | int) -> int:
    return cli.main(["inspect", *map(str, arguments)])


@pytest.fixture(scope="module")
def report(odd: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What `--json` prints, and the page."""
    import contextlib
    import io

    png = tmp_path_factory.mktemp("page") / "made" / "page.png"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(f"{odd}/train-*", "--validation", f"{odd}/validation-*", "--size", 64, "--json", "--output", png)
    assert code == 0
    return json.loads(out.getvalue()), png


def test_keys_are_found_and_described(report: tuple[dict[str, Any], Path]) -> None:
    told, _ = report
    assert (told["image_key"], told["label_key"]) == ("image/encoded", "image/class/label")
    count = PLAIN + len(KINDS) + 1 + 3
    assert told["features"]["image/encoded"] == {"kind": "bytes", "records": count, "least": 1, "most": 1}
    assert told["features"]["image/bbox"] == {"kind": "float", "records": count, "least": 1, "most": 3}


def test_counts(report: tuple[dict[str, Any], Path]) -> None:
    told, _ = report
    train, validation = told["splits"]["train"], told["splits"]["validation"]
    assert (train["records"], train["bad"], train["shards"]) == (PLAIN + len(KINDS) + 1, 1, 2)
    assert train["shard_records"] == [25, 25, 25]
    assert train["classes"] == [0, 12, 12, 12, 13] and validation["classes"] == [0, 2, 1]
    assert train["sorted_by_class"] > 0.9 and told["bad"] == 1


def test_formats_and_orientations(report: tuple[dict[str, Any], Path]) -> None:
    told, _ = report
    assert told["formats"] == {
        "JPEG baseline": PLAIN + 3 + 1 + 3,
        "JPEG progressive": 1,
        "JPEG baseline gray": 1,
        "JPEG baseline CMYK": 1,
        "PNG named .jpg": 1,
        "WEBP named .jpg": 1,
    }
    assert told["orientations"] == {"1": PLAIN + 6 + 1 + 3, "3": 1, "6": 1}


def test_sizes(report: tuple[dict[str, Any], Path]) -> None:
    told, _ = report
    assert told["percentiles"] == list(PERCENTILES)
    assert told["images"]["height"][0] == odd_images.HEIGHT and told["images"]["height"][-1] == 60 + PLAIN - 1
    assert told["images"]["width"][3] == 90
    assert told["images"]["aspect"][-1] == pytest.approx(90 / 60)


def test_copies_are_found_within_and_across(report: tuple[dict[str, Any], Path]) -> None:
    told, _ = report
    groups = {tuple((copy["split"], copy["record"]) for copy in group) for group in told["duplicates"]}
    assert groups == {
        (("train", 0), ("train", PLAIN + len(KINDS))),
        (("train", 3), ("validation", 0)),
        (("train", 4), ("validation", 1)),
    }


def test_advice_names_everything(report: tuple[dict[str, Any], Path]) -> None:
    told, _ = report
    said = {item["about"]: item["text"] for item in told["advice"]}
    assert set(said) == {
        "bad", "leakage", "duplicates", "labels", "order", "size", "format", "orientation"
    }  # fmt: skip
    texts = " ".join(item["text"] for item in told["advice"])
    for words in (
        "1 record (1.9%) is unusable. `dali-tf verify ",
        "2 images are in more than one split (such as train #3 and validation #0)",
        "1 image is a copy of another in the same split",
        "1 image is there under different labels",
        "pass --label-offset 1",
        "train is sorted by class",
        "smaller than the crop of 64 px",
        "1 image (1.9%) is a progressive JPEG",
        "2 images are of another format than their file name says",
        "2 images (3.8%) are to be turned",
    ):
        assert words in texts, words


def test_the_page(report: tuple[dict[str, Any], Path]) -> None:
    told, png = report
    assert told["picture"] == str(png)
    with Image.open(png) as image:
        assert image.format == "PNG" and image.width == 1500
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for color in ((47, 111, 159), (224, 147, 47), (197, 34, 31)):  # both splits, and the crop's frame
        assert (np.abs(pixels.astype(int) - color).max(1) < 25).sum() > 50


def test_the_tables(odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{odd}/train-*", "--label-offset", "1", "--output", tmp_path / "page.png") == 0
    told = capsys.readouterr().out
    header, files = (line.split() for line in told.splitlines()[:2])
    assert header[:5] == ["split", "records", "bad", "classes", "shards"]
    assert files[:5] == ["train", str(PLAIN + len(KINDS) + 1), "1", "4", "2"]
    assert "image/bbox" in told and "float[1 to 3]" in told
    assert "Duplicates:  2 images in 1 group of equal bytes, 0 of them across splits" in told
    assert "pass --label-offset" not in told.split("Advice")[1]
    assert told.endswith(f"Saved:   {tmp_path / 'page.png'}\n")


def test_the_command_that_is_advised_says_what_was_said(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the keys that were found: `verify` looks for none."""
    pattern = str(odd / "train-*")
    assert run(pattern, "--label-offset", "1", "--output", tmp_path / "page.png", "--json") == 0
    (text,) = [item["text"] for item in json.loads(capsys.readouterr().out)["advice"] if item["about"] == "bad"]
    command = shlex.split(text.split("`")[1])
    assert command[:3] == ["dali-tf", "verify", pattern]
    given = dict(zip(command[3::2], command[4::2], strict=True))
    assert given == {"--image-key": "image/encoded", "--label-key": "image/class/label", "--label-offset": "1"}


def test_of_a_tfds_folder_only_what_was_said_is_repeated() -> None:
    arguments = commands(cli.parser())["inspect"].parse_args(["a b/c", "--split", "train[:9]", "--data-dir", "/d"])
    assert inspect_command._quoted(arguments, Schema()) == "'a b/c' --data-dir /d --split 'train[:9]'"


@pytest.mark.parametrize("ratio", [0.2, 0.67, 1.0, 1.3, 1.5, 1.78, 4.0])
def test_an_aspect_lies_between_ticks_and_is_named(ratio: float, tmp_path: Path) -> None:
    image = support.jpeg(np.zeros((400, round(400 * ratio), 3), np.uint8))
    path = support.write_shard(tmp_path / "a", [support.example({"image": image, "label": 0})])
    axes = Figure().add_subplot()
    inspect_page._aspects(axes, look(path, schema=Schema()))
    ticks = axes.get_xticks()
    assert ticks[0] - 0.01 <= ratio <= ticks[-1] and len(ticks) >= 5
    assert axes.get_xlim()[0] < ratio < axes.get_xlim()[1]
    assert axes.get_xlabel() == f"median {ratio:.2f}"


def test_a_broken_shard_is_named_and_stops_nothing(odd: Path) -> None:
    summary = figures(look(odd / "validation-00000-of-00001", odd / "broken"))
    assert summary.records == 3 and summary.splits["broken"].records == 0
    ((path, why),) = summary.problems.items()
    assert path == str(odd / "broken") and "cut short" in why


def test_a_missing_shard_is_named_and_stops_nothing(odd: Path) -> None:
    summary = figures(look(odd / "gone", odd / "validation-00000-of-00001"))
    assert summary.problems == {str(odd / "gone"): "No such file or directory"}
    assert summary.records == 3


def test_only_broken_shards(odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--image-key", "image/encoded", "--output", str(tmp_path / "page.png")]
    assert run(odd / "broken", *arguments) == 2  # not even the keys can be told
    assert "cut short" in capsys.readouterr().err


def test_a_tfds_folder(tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png = tmp_path / "page.png"
    assert run(tfds_folder, "--size", "32", "--json", "--output", png) == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: split["records"] for name, split in told["splits"].items()} == {"train": 203, "validation": 37}
    assert len(told["splits"]["train"]["classes"]) == 10 and sum(told["splits"]["train"]["classes"]) == 203
    assert set(told["features"]) == {"image", "label", "id"}
    assert told["declared"]["image"] == {"dtype": "uint8", "shape": [None, None, 3], "classes": None}
    assert told["declared"]["label"]["classes"] == 10
    assert told["duplicates"] == [] and told["advice"] == []


def test_a_slice_of_a_split(tfds_folder: Path) -> None:
    dataset = tfds_source.read_metadata(tfds_folder)
    wanted = sources.of_splits(dataset, "train[60:150]+validation[:5]")
    found = survey.survey(wanted, dataset.schema(), (), 2, lambda count: None)
    ids = {split: np.concatenate([shard.table["id"] for shard in found.of(split)]).tolist() for split in found.splits}
    assert ids == {"train": list(range(60, 150)), "validation": list(range(5))}
    expected = tfds_source.open_split(dataset, "train[60:150]", dataset.schema())
    labels = np.concatenate([shard.table["label"] for shard in found.of("train")])
    np.testing.assert_array_equal(labels, expected.labels)


def test_a_shard_with_other_records_than_the_metadata_say(odd: Path) -> None:
    schema = Schema(image_key="image/encoded", label_key="image/class/label")
    source = Source("train", odd / "validation-00000-of-00001", 0, 5, 0, 5)
    found = survey.survey([source], schema, (), 1, lambda count: None)
    assert figures(found).problems[str(source.path)] == "the shard holds 3 records; dataset_info.json says 5."


def test_a_second_look_comes_from_the_cache(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = odd / "train-00000-of-00002"
    before, ticks = look(path), list[int]()
    monkeypatch.setattr(survey, "_look", lambda *arguments: pytest.fail("looked again"))
    schema = before.schema
    after = survey.survey([Source(path.name, path)], schema, (), 1, ticks.append)
    np.testing.assert_array_equal(after.shards[0].looks, before.shards[0].looks)
    assert after.shards[0].fields == before.shards[0].fields
    assert sum(ticks) == survey.PASSES * path.stat().st_size


def test_progress_counts_every_byte_and_begins_with_the_first_scan(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ticks, look = odd / "train-00000-of-00002", list[int](), survey._look
    size, scanned = path.stat().st_size, list[int]()

    def looked(*arguments: Any) -> Any:
        scanned.append(sum(ticks))
        return look(*arguments)

    monkeypatch.setattr(survey, "_look", looked)
    survey.survey([Source("a", path)], Schema(image_key="image/encoded", label_key=None), (), 1, ticks.append, True)
    assert scanned == [size] and sum(ticks) == survey.PASSES * size


def test_which_feature_is_the_label(tmp_path: Path) -> None:
    image = support.photograph(0, 20, 20)
    features: dict[str, support.Value] = {"jpeg": image, "width": 20, "class_id": 3, "text": b"no image"}
    path = support.write_shard(tmp_path / "a", [support.example(features)])
    schema = sources.guess_schema(path, None, None, 0)
    assert (schema.image_key, schema.label_key) == ("jpeg", "class_id")
    assert sources.guess_schema(path, None, "width", 0).label_key == "width"
    without = support.write_shard(tmp_path / "b", [support.example({"jpeg": image, "width": 20})])
    assert sources.guess_schema(without, None, None, 0).label_key is None


def test_no_image_is_an_error_with_the_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = support.write_shard(tmp_path / "a", [support.example({"text": b"words", "label": 1})])
    assert run(path) == 2
    told = capsys.readouterr().err
    assert "no feature is an image. The record's keys: 'label', 'text'. Name one with --image-key." in told


def split_of(**changed: Any) -> Any:
    from dali_pipe.summary import SplitSummary

    plain = {
        "shards": 4, "records": 400, "bad": 0, "bytes": 4 << 27, "shard_records": (100.0,) * 3,
        "shard_bytes": (float(1 << 27),) * 3, "classes": (200, 200), "sorted_by_class": 0.0,
    }  # fmt: skip
    return SplitSummary(**{**plain, **changed})


def told_of(smaller: int = 0, **changed: Any) -> list[str]:
    """Subjects of the advice on an ordinary data set with something changed."""
    plain: dict[str, Any] = {
        "splits": {"train": split_of()}, "image_key": "image", "label_key": "label", "fields": {}, "class_names": (),
        "images": {"shorter side": (300.0,) * len(PERCENTILES)}, "formats": {"JPEG baseline": 400},
        "orientations": {1: 400}, "duplicates": (), "problems": {}, "outside": 0,
    }  # fmt: skip
    case = Case(summary=Summary(**{**plain, **changed}), size=224, smaller=smaller, data="x")
    return [item.about for item in advice.advice(case)]


def test_an_ordinary_data_set_has_no_advice() -> None:
    assert told_of() == []


@pytest.mark.parametrize(
    ("about", "changed"),
    [
        ("shards", {"splits": {"train": split_of(shards=2000, shard_bytes=(1e5, 2e5, 3e5))}}),
        ("shards", {"splits": {"train": split_of(shards=2, shard_bytes=(8e9, 8e9, 8e9))}}),
        ("labels", {"splits": {"train": split_of(classes=(390, 10))}}),
        ("labels", {"splits": {"train": split_of(), "test": split_of(classes=(40,))}}),
        ("labels", {"outside": 3}),
        ("labels", {"label_key": None, "splits": {"train": split_of(classes=())}}),
        ("order", {"splits": {"train": split_of(sorted_by_class=0.8)}}),
        ("size", {"images": {"shorter side": (900.0,) * len(PERCENTILES)}}),
        ("size", {"smaller": 7}),
        ("format", {"formats": {"JPEG baseline": 300, "JPEG progressive": 100}}),
        ("format", {"formats": {"JPEG baseline": 300, "PNG": 100}}),
        ("orientation", {"orientations": {1: 399, 6: 1}}),
        ("bad", {"splits": {"train": split_of(bad=1)}}),
        ("bad", {"problems": {"a": "broken"}}),
    ],
)
def test_what_stands_out_has_advice(about: str, changed: dict[str, Any]) -> None:
    assert told_of(**changed) == [about]


def test_bytes_for_people() -> None:
    sizes = {0: "0 B", 999: "999 B", 2048: "2 KB", 1_500_000: "1.43 MB", 250 << 20: "250 MB", 3 << 40: "3 TB"}
    assert {count: inspect_text.size(count) for count in sizes} == sizes


def test_what_tfds_declares_is_in_the_table(
    tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tfds_folder, "--output", tmp_path / "page.png") == 0
    told = capsys.readouterr().out
    assert "the image, uint8[?, ?, 3]\n" in told and "the label, 10 classes\n" in told


def test_features_json_that_nobody_can_read(tmp_path: Path) -> None:
    for content in ("", "[1]", '{"featuresDict": {"features": {"a": {"image": {"shape": 3}}}}}'):
        (tmp_path / "features.json").write_text(content)
        assert inspect_features.declared(tmp_path) == {}


def test_nested_and_scalar_features(tmp_path: Path) -> None:
    box = {"tensor": {"shape": {"dimensions": ["-1", "4"]}, "dtype": "float32", "encoding": "none"}}
    scalar = {"pythonClassName": "Scalar", "tensor": {"shape": {}, "dtype": "int64"}}
    nested = {"featuresDict": {"features": {"box": box, "id": scalar, "words": {"text": {}}}}}
    (tmp_path / "features.json").write_text(json.dumps({"featuresDict": {"features": {"objects": nested}}}))
    found = inspect_features.declared(tmp_path)
    assert {key: str(feature) for key, feature in found.items()} == {"objects/box": "float32[?, 4]", "objects/id": ""}


def test_shapes() -> None:
    assert inspect_text.shape(Field("int64", 9, 1, 1)) == "int64"
    assert inspect_text.shape(Field("float", 9, 4, 4)) == "float[4]"
    assert inspect_text.shape(Field("float", 9, 0, 4)) == "float[0 to 4]"
