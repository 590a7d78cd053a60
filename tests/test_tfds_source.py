"""TFDS folders read without TFDS, against TFDS's own reading."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dali_pipe import RecordError, Records, Schema, reader, tfds_source
from dali_pipe.tfds_source import Dataset, DatasetNotFoundError
from tests import support

FILE_ORDER = tfds.ReadConfig(interleave_cycle_length=1)


@pytest.fixture(scope="module")
def dataset(tfds_folder: Path) -> Dataset:
    return tfds_source.read_metadata(tfds_folder)


@pytest.fixture(scope="module")
def builder(tfds_folder: Path) -> Any:
    return tfds.builder_from_directory(tfds_folder)


def _tfds_reads(builder: Any, split: str) -> list[dict[str, Any]]:
    decoders = {"image": tfds.decode.SkipDecoding()}
    ds = builder.as_dataset(split=split, shuffle_files=False, read_config=FILE_ORDER, decoders=decoders)
    return list(tfds.as_numpy(ds))


def _images(view: Records) -> list[bytes]:
    return [bytes(image) for image in reader.read_images(view, np.arange(len(view)))]


SPLITS = [
    "train",
    "validation",
    "all",
    "train[:80%]",
    "train[10%:50%]",
    "train[-20%:]",
    "train[:-5%]",
    "train[33.33%:66.6%]",
    "train[0.5%:1%]",
    "train[100:200]",
    "train[-10:]",
    "train[:-5]",
    "train[-150:-50]",
    "train[1_0:2_0]",
    "train[1shard]",
    "train[-1shard]",
    "train[:2shard]",
    "train[1shard:3shard]",
    "train[-2shard:]",
    "train[:-1shard]",
    "train+validation",
    "validation + train[:3]",
    "train[:50%]+validation[5:10]",
    "train[5:8]+train[:6]",
]


@pytest.mark.parametrize("split", SPLITS)
def test_reads_what_tfds_reads(dataset: Dataset, builder: Any, split: str) -> None:
    expected = _tfds_reads(builder, split)
    by_id = tfds_source.open_split(dataset, split, Schema(label_key="id"))
    assert by_id.labels.tolist() == [record["id"] for record in expected]
    view = tfds_source.open_split(dataset, split, dataset.schema())
    assert view.labels.tolist() == [record["label"] for record in expected]
    some = list(range(0, len(view), 19))
    assert _images(view.select(some)) == [expected[place]["image"] for place in some]


def _bounds(dataset: Dataset, spec: str) -> list[tuple[str, int, int]]:
    return [(split.name, low, high) for split, low, high in tfds_source.slices(dataset, spec)]


def _tfds_bounds(builder: Any, spec: str) -> list[tuple[str, int, int]]:
    splits = builder.info.splits
    parts = tfds.core.ReadInstruction.from_spec(spec).to_absolute(splits)
    ends = [(p.splitname, p.from_ or 0, splits[p.splitname].num_examples if p.to is None else p.to) for p in parts]
    if any(low > high for _, low, high in ends):
        raise ValueError("ends before it starts")  # TFDS finds this out when it reads
    return ends


def _some_slice(rng: random.Random) -> str:
    unit, largest, step = rng.choice([("", 230, 1.0), ("%", 110, 0.01), ("shard", 4, 1.0)])
    bounds = [round(rng.randrange(round(-largest / step), round(largest / step)) * step, 2) for _ in range(2)]
    low, high = (rng.choice(["", f"{bound:g}{unit}"]) for bound in bounds)
    return f"train[{low}:{high}]"


def test_random_slices_are_cut_where_tfds_cuts_them(dataset: Dataset, builder: Any) -> None:
    rng, refused = random.Random(0), 0
    for _ in range(2000):
        spec = _some_slice(rng)
        if spec.endswith(":0shard]"):
            continue  # TFDS takes it for `[:]`
        try:
            expected = _tfds_bounds(builder, spec)
        except ValueError:
            refused += 1
            with pytest.raises(ValueError, match="`split` must"):
                tfds_source.slices(dataset, spec)
        else:
            assert _bounds(dataset, spec) == expected, spec
    assert 100 < refused < 1500


@pytest.mark.parametrize("spec", ["train[0:0]", "train[:0shard]", "train[203:]", "train[:-100%]", "train[50:50]"])
def test_a_slice_may_be_empty(dataset: Dataset, spec: str) -> None:
    assert len(tfds_source.open_split(dataset, spec, dataset.schema())) == 0


@pytest.mark.parametrize(
    ("spec", "ids"),
    [
        ("train[100:103]", [100, 101, 102]),
        ("validation[2:4]", [2, 3]),
        ("validation[2:4]+train[:2]", [2, 3, 37, 38]),  # train counts on after all of validation
        ("train[:2]+validation[:1]", [0, 1, 203]),
        ("train[3:4]+train[:1]", [3, 0]),
    ],
)
def test_ids_are_ordinals_in_the_whole_split(dataset: Dataset, spec: str, ids: list[int]) -> None:
    assert tfds_source.open_split(dataset, spec, dataset.schema()).ids.tolist() == ids


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("test", "`split` must name a split of .*/1.0.0. It has: train, validation. Received: 'test'"),
        ("train+test[:5]", "It has: train, validation"),
        ("", "`split` must read like 'train.:80%.' or 'train.validation'. See https://.* Received: ''"),
        ("train[:80%", "must read like"),
        ("train 80%", "must read like"),
        ("train++validation", "must read like"),
        ("train[]", "must slice as .from:to. in records, % or shards"),
        ("train[:]", "must slice as"),
        ("train[5]", "must slice as"),
        ("train[5%]", "must slice as"),
        ("train[1:2:3]", "must slice as"),
        ("train[10:50%]", "must slice as"),  # TFDS takes both for percentages
        ("train[a:b]", "must slice as"),
        ("train[1.5:3]", "must slice by numbers; only % takes fractions"),
        ("train[:1.5shard]", "must slice by numbers"),
        ("train[:.]", "must slice by numbers"),
        ("train[:204]", "must stay within train's 203 records. Received: 'train.:204.'"),
        ("train[-204:]", "must stay within train's 203 records"),
        ("train[:101%]", "must stay within"),
        ("train[:100.1%]", "must stay within"),
        ("train[:5shard]", "must stay within train's 4 shards"),
        ("train[4shard]", "must stay within train's 4 shards"),
        ("train[-5shard]", "must stay within train's 4 shards"),
        ("train[10:5]", "must not end before it starts"),
        ("train[-10:5%]", "must slice as"),
        ("train[60%:-60%]", "must not end before it starts"),
        ("all[:50%]", "`split` must not slice 'all'"),
    ],
)
def test_refuses_splits(dataset: Dataset, spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tfds_source.slices(dataset, spec)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Data sets as TFDS lays them out, of which only the folders matter."""
    for folder in ("cats/1.0.0", "cats/1.9.0", "cats/1.10.0", "dogs/big/2.0.0", "dogs/small-v2/2.0.0", "birds/1.0.0"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "dataset_info.json").touch()
    (tmp_path / "birds" / "2.0.0.incomplete").mkdir()
    (tmp_path / "birds" / "3.0.0").mkdir()  # without metadata: not prepared
    return tmp_path


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        ("cats", "cats/1.10.0"),  # versions are numbers
        ("cats:1.9.0", "cats/1.9.0"),
        ("dogs/big", "dogs/big/2.0.0"),
        ("dogs/small-v2:2.0.0", "dogs/small-v2/2.0.0"),
        ("birds", "birds/1.0.0"),
    ],
)
def test_find_by_name(data_dir: Path, monkeypatch: pytest.MonkeyPatch, data: str, folder: str) -> None:
    assert tfds_source.find(data, data_dir) == data_dir / folder
    assert tfds_source.find(data, str(data_dir)) == data_dir / folder
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    assert tfds_source.find(data) == data_dir / folder


def test_find_looks_in_the_home_folder_last(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(data_dir))
    os.rename(data_dir / "cats", data_dir / "tensorflow_datasets")
    (data_dir / "tensorflow_datasets" / "cats").mkdir()
    os.rename(data_dir / "tensorflow_datasets/1.9.0", data_dir / "tensorflow_datasets/cats/1.9.0")
    assert tfds_source.find("cats") == data_dir / "tensorflow_datasets/cats/1.9.0"
    assert tfds_source.find("~/dogs/big") == data_dir / "dogs/big/2.0.0"


def test_find_takes_folders(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (data_dir / "cats/1.9.0", f"{data_dir}/cats/1.9.0"):
        assert tfds_source.find(folder, "/nowhere") == data_dir / "cats/1.9.0"
    assert tfds_source.find(data_dir / "cats") == data_dir / "cats/1.10.0"
    monkeypatch.chdir(data_dir)
    assert tfds_source.find("dogs/big") == Path("dogs/big/2.0.0")


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("horses", "prepare it once with tfds.builder('horses').download_and_prepare()"),
        ("cats:2.0.0", "prepare it once with tfds.builder('cats:2.0.0').download_and_prepare()"),
        ("dogs", "prepare it once with tfds.builder('dogs').download_and_prepare()"),  # only its configs are there
        ("/data/../nowhere", "check the path"),
        ("../cats:1", "check the path"),
    ],
)
def test_find_says_where_it_looked(data_dir: Path, data: str, hint: str) -> None:
    with pytest.raises(DatasetNotFoundError, match="`data` must be a TFDS folder") as caught:
        tfds_source.find(data, data_dir)
    assert str(caught.value).endswith(f"; {hint}. Received: {data!r}, looked in {data} and {data_dir}")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("", "this folder holds data sets: give one of them, such as '{0}/birds'"),
        ("dogs", "this folder holds data sets: give one of them, such as '{0}/dogs/big'"),
        ("shards", "this folder holds TFRecord files: give them as a glob, such as '{0}/shards/train-*'"),
        ("shards/train-*", "this is a glob of files, which `tb.from_tfrecords` takes"),
        ("shards/val-*", "no file matches this glob"),
        ("cats/*", "no file matches this glob"),  # folders do
        ("empty", "check the path"),
    ],
)
def test_find_says_what_is_there_instead(data_dir: Path, data: str, hint: str) -> None:
    (data_dir / "empty").mkdir()
    (data_dir / "shards").mkdir()
    (data_dir / "shards" / "a.txt").write_text("these are photographs")
    for k in range(2):
        support.write_shard(data_dir / f"shards/train-{k:05d}-of-00002", [support.example({"label": k})])
    place = str(data_dir / data) if data else str(data_dir)
    with pytest.raises(DatasetNotFoundError) as caught:
        tfds_source.find(place, "/nowhere")
    assert f"; {hint.format(data_dir)}. Received: {place!r}, " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("cifar10-train.tfrecord-00000-of-00002", "cifar10-train.tfrecord-*"),
        ("imagenet2012-train-00007-of-01024.tfrecord", "imagenet2012-train-*.tfrecord"),
        ("part-0123.tfrec", "part-*.tfrec"),
        ("train.tfrecord", "*.tfrecord"),
    ],
)
def test_a_glob_that_is_told_has_one_kind_of_file(tmp_path: Path, name: str, pattern: str) -> None:
    support.write_shard(tmp_path / name, [support.example({"label": 0})])
    with pytest.raises(DatasetNotFoundError, match=re.escape(f"such as '{tmp_path}/{pattern}'")):
        tfds_source.find(str(tmp_path), "/nowhere")


def test_a_folder_that_is_called_as_a_data_set_hides_no_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    with pytest.raises(DatasetNotFoundError, match="prepare it once"):
        tfds_source.find("mnist", "/nowhere")


def test_metadata(dataset: Dataset, tfds_folder: Path) -> None:
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 203, "validation": 37}
    assert [len(split.shards) for split in dataset.splits.values()] == [4, 4]
    assert dataset.features == {"id": "tensor", "image": "image", "label": "classLabel"}
    assert dataset.supervised == ("image", "label")
    assert dataset.schema() == Schema(image_key="image", label_key="label")
    assert dataset.schema(label_key="id", label_offset=3) == Schema(label_key="id", label_offset=3)
    assert dataset.folder == tfds_folder


@pytest.fixture
def copy(tfds_folder: Path, tmp_path: Path) -> Path:
    """A copy of the data set, to be damaged."""
    return Path(shutil.copytree(tfds_folder, tmp_path / "1.0.0"))


def _change_info(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    info = json.loads((folder / "dataset_info.json").read_text())
    change(info)
    (folder / "dataset_info.json").write_text(json.dumps(info))


def _open(folder: Path, split: str = "train") -> Records:
    dataset = tfds_source.read_metadata(folder)
    return tfds_source.open_split(dataset, split, dataset.schema())


def test_a_missing_shard_is_named(copy: Path) -> None:
    gone = copy / "tiny_photos-train.tfrecord-00002-of-00004"
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=f"{gone}: the shard is not there, but dataset_info.json names it"):
        _open(copy)
    assert len(_open(copy, "validation")) == 37  # which needs it not


def test_a_shard_of_another_length_is_named(copy: Path) -> None:
    def change(info: dict[str, Any]) -> None:
        info["splits"][0]["shardLengths"][1] = "50"

    have = json.loads((copy / "dataset_info.json").read_text())["splits"][0]["shardLengths"][1]
    _change_info(copy, change)
    message = f"train.tfrecord-00001-of-00004: the shard holds {have} records; dataset_info.json says 50. Prepare it"
    with pytest.raises(RecordError, match=message):
        _open(copy)


def test_a_broken_shard_is_named(copy: Path) -> None:
    shard = copy / "tiny_photos-train.tfrecord-00001-of-00004"
    os.truncate(shard, 10_000)
    with pytest.raises(RecordError, match=f"{shard}, record at byte .* cut short"):
        _open(copy)


def test_other_file_formats_are_refused(copy: Path) -> None:
    _change_info(copy, lambda info: info.update(fileFormat="array_record"))
    with pytest.raises(ValueError, match="the file format must be tfrecord; it is array_record"):
        _open(copy)


def test_without_a_file_format_tfrecord_is_meant(copy: Path) -> None:
    _change_info(copy, lambda info: info.pop("fileFormat", None))
    assert len(_open(copy)) == 203


HOSTILE = [
    "../../x",
    "../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    "/etc/passwd",
    "a/{SHARD_INDEX}",
    "..",
    ".",
    "{SPLIT}/../{SHARD_INDEX}",
]


@pytest.mark.parametrize("template", HOSTILE)
def test_shards_outside_the_folder_are_refused(copy: Path, template: str) -> None:
    _change_info(copy, lambda info: info["splits"][0].update(filepathTemplate=template))
    with pytest.raises(ValueError, match=r"a shard must lie in its data set's folder\. Received: f") as caught:
        _open(copy)
    assert str(caught.value).endswith(f"filepathTemplate={template!r}")


@pytest.mark.parametrize("name", ["../evil", "/evil"])
def test_names_that_lead_outside_are_refused(copy: Path, name: str) -> None:
    _change_info(copy, lambda info: info.update(name=name))
    with pytest.raises(ValueError, match="a shard must lie in its data set's folder"):
        _open(copy)


@pytest.mark.parametrize("template", ["{0.__class__}", "{DATASET.__class__}-{SHARD_X_OF_Y}", "{", "{UNKNOWN}"])
def test_a_template_is_only_filled_in(copy: Path, template: str) -> None:
    _change_info(copy, lambda info: info["splits"][0].update(filepathTemplate=template))
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(str(copy))}/.*{{.*: the shard is not there"):
        _open(copy)


def test_other_templates_name_the_shards(copy: Path) -> None:
    for index in range(4):
        name = f"tiny_photos-train.tfrecord-{index:05d}-of-00004"
        os.rename(copy / name, copy / f"{index:05d}_00004.train.tfrecord")
    template = "{SHARD_INDEX}_{NUM_SHARDS}.{SPLIT}.{FILEFORMAT}"
    _change_info(copy, lambda info: info["splits"][0].update(filepathTemplate=template))
    assert len(_open(copy)) == 203


def test_a_split_without_a_template_has_tfds_default(copy: Path) -> None:
    _change_info(copy, lambda info: info["splits"][0].pop("filepathTemplate"))
    assert len(_open(copy)) == 203


def test_shards_without_records_have_no_file(tmp_path: Path) -> None:
    payload = support.example({"image": support.photograph(0, 30, 40), "label": 1})
    for index, count in ((0, 2), (2, 3)):
        support.write_shard(tmp_path / f"few-train.tfrecord-{index:05d}-of-00003", [payload] * count)
    split = {"name": "train", "shardLengths": ["2", "0", "3"]}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"name": "few", "splits": [split, {"name": "test"}]}))
    dataset = tfds_source.read_metadata(tmp_path)
    assert len(tfds_source.open_split(dataset, "train", Schema())) == 5
    assert len(tfds_source.open_split(dataset, "train[1shard]", Schema())) == 0
    assert len(tfds_source.open_split(dataset, "test", Schema())) == 0


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", ["", "{", "<html>"])
def test_metadata_that_are_no_json_are_named(copy: Path, file: str, content: str) -> None:
    (copy / file).write_text(content)
    with pytest.raises(ValueError, match=f"{copy}/{file}: must be JSON as TFDS writes it"):
        tfds_source.read_metadata(copy)


@pytest.mark.parametrize("info", [[], {}, {"name": "x", "splits": [{}]}, {"name": "x", "splits": 3}, "x", {"name": 1}])
def test_metadata_that_are_not_tfds_are_named(copy: Path, info: Any) -> None:
    (copy / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=f"{copy}"):
        _open(copy)


def test_without_features_the_keys_must_be_given(copy: Path) -> None:
    (copy / "features.json").unlink()
    dataset = tfds_source.read_metadata(copy)
    with pytest.raises(ValueError, match=r"`image_key` must be given .* no features.json that can be read"):
        dataset.schema()
    view = tfds_source.open_split(dataset, "train", dataset.schema("image", "label"))
    assert len(view) == 203


def _features(folder: Path, features: dict[str, Any], supervised: tuple[str, str] | None = None) -> Dataset:
    """The metadata of a data set with these features, written by TFDS."""
    folder.mkdir(exist_ok=True)
    tfds.features.FeaturesDict(features).save_config(folder)
    items = [{"featureKey": key} for key in supervised or ()]
    info = {"name": "x", "supervisedKeys": {"tuple": {"items": items}}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return tfds_source.read_metadata(folder)


IMAGE, LABEL = tfds.features.Image(), tfds.features.ClassLabel(names=["b a", "c", "ä"])


def test_the_only_image_and_label_are_taken(tmp_path: Path) -> None:
    dataset = _features(tmp_path, {"pixels": IMAGE, "class": LABEL, "n": np.int64, "text": tfds.features.Text()})
    assert dataset.schema() == Schema(image_key="pixels", label_key="class")


def test_several_images_need_a_key(tmp_path: Path) -> None:
    dataset = _features(tmp_path, {"left": IMAGE, "right": IMAGE, "label": LABEL})
    there = (
        r"left \(image\), right \(image\), label \(classLabel\)|label \(classLabel\), left \(image\), right \(image\)"
    )
    with pytest.raises(ValueError, match=rf"`image_key` must be given where .* has: ({there})$"):
        dataset.schema()
    assert dataset.schema(image_key="right") == Schema(image_key="right", label_key="label")


def test_several_labels_need_a_key(tmp_path: Path) -> None:
    dataset = _features(tmp_path, {"image": IMAGE, "fine": LABEL, "coarse": LABEL})
    with pytest.raises(ValueError, match=r"`label_key` must be given where .* not exactly one classLabel"):
        dataset.schema()
    assert dataset.schema(label_key="fine") == Schema(label_key="fine")


def test_no_label_needs_a_key(tmp_path: Path) -> None:
    dataset = _features(tmp_path, {"image": IMAGE, "n": np.int64})
    with pytest.raises(ValueError, match=r"`label_key` must be given .* image \(image\), n \(tensor\)"):
        dataset.schema()


def test_supervised_keys_settle_it(tmp_path: Path) -> None:
    features = {"left": IMAGE, "right": IMAGE, "label": LABEL, "n": np.int64}
    dataset = _features(tmp_path, features, supervised=("right", "n"))
    assert dataset.schema() == Schema(image_key="right", label_key="n")


def test_supervised_keys_without_an_image_settle_nothing(tmp_path: Path) -> None:
    features = {"image": IMAGE, "text": tfds.features.Text(), "label": LABEL}
    assert _features(tmp_path, features, supervised=("text", "label")).schema() == Schema()


def test_features_with_a_description_are_what_they_are(tmp_path: Path) -> None:
    about = tfds.features.Documentation(desc="what it shows", value_range="0-2")
    image, label = tfds.features.Image(doc="a photograph"), tfds.features.ClassLabel(num_classes=3, doc=about)
    dataset = _features(tmp_path, {"image": image, "label": label}, supervised=("image", "label"))
    assert dataset.features == {"image": "image", "label": "classLabel"}
    assert dataset.schema() == Schema()


def test_nested_features_have_the_keys_they_are_stored_under(tmp_path: Path) -> None:
    dataset = _features(tmp_path, {"view": {"image": IMAGE, "at": {"label": LABEL}}, "n": np.int64})
    assert dataset.schema() == Schema(image_key="view/image", label_key="view/at/label")
    assert dataset.classes("view/at/label") == ("b a", "c", "ä")


def test_classes(tmp_path: Path) -> None:
    dataset = _features(tmp_path, {"image": IMAGE, "label": LABEL, "image/class/label": LABEL, "n": np.int64})
    for key in ("label", "image/class/label"):
        assert dataset.classes(key) == ("b a", "c", "ä")
    assert dataset.classes("n") == dataset.classes(None) == ()


def test_a_view_knows_its_classes(copy: Path) -> None:
    (copy / "label.labels.txt").write_text("\n".join("abcdefghij") + "\n")
    assert _open(copy, "train[:3]+validation").classes == tuple("abcdefghij")
    assert _open(copy, "train[:3]").take(1).classes == tuple("abcdefghij")


@pytest.mark.parametrize("split", ["train", "validation", "train[:80%]", "train[80%:]+validation[3:]"])
def test_imagenette_is_found_by_name_and_read_as_tfds_reads_it(imagenette: Path, split: str) -> None:
    folder = tfds_source.find("imagenette/320px", imagenette)
    assert folder == imagenette / "imagenette/320px/1.0.0"
    dataset = tfds_source.read_metadata(folder)
    view = tfds_source.open_split(dataset, split, dataset.schema())
    builder = tfds.builder("imagenette/320px", data_dir=imagenette)
    expected = _tfds_reads(builder, split)
    assert len(view) >= 6
    assert view.labels.tolist() == [record["label"] for record in expected]
    assert _images(view) == [record["image"] for record in expected]
    assert list(view.classes) == builder.info.features["label"].names
