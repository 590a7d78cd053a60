"""What becomes of each kind of image under each policy, the same on every engine."""

import functools
import io
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

import dali_pipe as dp
import tf_bridge as tb
from dali_pipe import reader, tfds_source, tfrecord
from dali_pipe.scan import Schema
from tests import odd_images, support
from tf_bridge import choice, cli, cli_data, policy, repair, train
from tf_bridge.choice import EngineName
from tf_bridge.policy import OnError

NAMES = list(odd_images.IMAGES)
SIDE = 32
CENTER = dp.Recipe((dp.CenterCrop(SIDE),), "uint8")
TRAIN = dp.Recipe((dp.RandomCrop(SIDE), dp.RandomFlip()), "uint8")

# What happens to each kind where it is not simply read: under "raise" by DALI and by TensorFlow ("refused" is when the
# data set is made, "raises" when the image is met), under "skip", under "repair".
READ = ("read", "read", "read", "read")
FATE = {
    "ff00_between_segments": ("refused", "read", "left out", "repaired"),
    "gif": ("refused", "read", "left out", "repaired"),
    "truncated_half": ("refused", "raises", "left out", "left out"),
    "missing_eoi": ("refused", "raises", "left out", "left out"),
    "truncated_header": ("refused", "refused", "left out", "left out"),
    "empty": ("refused", "refused", "left out", "left out"),
    "garbage": ("refused", "refused", "left out", "left out"),
}
LEFT_OUT = {
    "skip": [k for k, name in enumerate(NAMES) if FATE.get(name, READ)[2] == "left out"],
    "repair": [k for k, name in enumerate(NAMES) if FATE.get(name, READ)[3] == "left out"],
}
REPAIRED = [k for k, name in enumerate(NAMES) if FATE.get(name, READ)[3] == "repaired"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Each kind once, in three shards; labels are ids."""
    return support.write_shards(tmp_path_factory.mktemp("odd"), list(odd_images.IMAGES.values()))


def _make(paths: list[Path], recipe: dp.Recipe = CENTER, **options: Any) -> tb.ImageDataset:
    options = {"batch_size": 8, "seed": 0, "max_bad": 0.5, **options}
    return tb.from_tfrecords(paths, recipe=recipe, **options)


def _epoch(dataset: Any) -> dict[int, np.ndarray]:
    """Image by label, in the order they come."""
    return {
        int(n): image for images, labels in dataset for image, n in zip(images.numpy(), labels.numpy(), strict=True)
    }


@functools.cache
def _outcome(paths: tuple[Path, ...], on_error: OnError, engine: EngineName) -> tuple[tb.ImageDataset, dict[int, Any]]:
    dataset = _make(list(paths), engine=engine, on_error=on_error)
    return dataset, _epoch(dataset)


@functools.cache
def _read_under_raise(paths: tuple[Path, ...], engine: EngineName) -> set[int]:
    """What comes of one pass over the kinds that the engine is said to read."""
    view = dp.from_files(list(paths), on_error="skip")
    column = 0 if engine == "dali" else 1
    readable = [k for k in view.ids.tolist() if FATE.get(NAMES[k], READ)[column] == "read"]
    view = view.select(np.isin(view.ids, readable))
    return set(_epoch(tb.from_records(view, recipe=CENTER, batch_size=8, engine=engine)))


def _alone(folder: Path, name: str, engine: EngineName) -> str:
    """What comes of a data set of this kind alone."""
    paths = support.write_shards(folder, [odd_images.IMAGES[name]], shards=1)
    try:
        dataset = _make(paths, engine=engine, batch_size=1)
    except dp.RecordError as error:
        assert (error.path, error.offset) == (paths[0], 0)
        return "refused"
    with pytest.raises(tf.errors.OpError, match=f"{paths[0]}, record at byte 0: .* cannot decode the image"):
        list(dataset)
    return "raises"


@pytest.mark.parametrize("name", NAMES)
def test_raise(odd: list[Path], tmp_path: Path, name: str, engine: EngineName) -> None:
    expected = FATE.get(name, READ)[0 if engine == "dali" else 1]
    if expected == "read":
        assert NAMES.index(name) in _read_under_raise(tuple(odd), engine)
    else:
        assert _alone(tmp_path, name, engine) == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on_error", ["skip", "repair"])
def test_skip_and_repair(odd: list[Path], name: str, on_error: OnError, engine: EngineName) -> None:
    dataset, images = _outcome(tuple(odd), on_error, engine)
    place, fate = NAMES.index(name), FATE.get(name, READ)[2 if on_error == "skip" else 3]
    assert (place in images) == (place in dataset.records.ids) == (fate != "left out")
    assert (place in {f.record for f in dataset.skipped}) == (fate == "left out")
    assert (place in {f.record for f in dataset.repaired}) == (fate == "repaired")


@pytest.mark.parametrize("on_error", ["skip", "repair"])
def test_every_engine_gives_the_same_images(odd: list[Path], on_error: OnError) -> None:
    (one, ours), (two, theirs) = (_outcome(tuple(odd), on_error, engine) for engine in ("dali", "tfdata"))
    assert list(ours) == list(theirs) == sorted(ours)
    assert (one.skipped, one.repaired) == (two.skipped, two.repaired)
    for place in REPAIRED if on_error == "repair" else []:
        assert np.array_equal(ours[place], theirs[place])


@pytest.mark.parametrize("on_error", ["skip", "repair"])
def test_cardinality_is_exact(odd: list[Path], on_error: OnError, engine: EngineName) -> None:
    dataset, images = _outcome(tuple(odd), on_error, engine)
    count = len(NAMES) - len(LEFT_OUT[on_error])
    assert len(images) == len(dataset.records) == count
    assert int(dataset.cardinality()) == len(dataset) == -(-count // 8)


@pytest.mark.parametrize("name", ["ff00_between_segments", "gif"])
def test_repaired_pixels_are_the_other_decoders(odd: list[Path], name: str, engine: EngineName) -> None:
    _, images = _outcome(tuple(odd), "repair", engine)
    whole = tf.io.decode_image(odd_images.IMAGES[name], channels=3, expand_animations=False).numpy()
    if name != "gif":
        whole = tf.io.decode_jpeg(odd_images.IMAGES[name], channels=3, dct_method="INTEGER_ACCURATE").numpy()
    top, left = (48 - SIDE) // 2, (64 - SIDE) // 2
    assert np.array_equal(images[NAMES.index(name)], whole[top : top + SIDE, left : left + SIDE])


def test_order_and_draws_of_the_others_stay(odd: list[Path], engine: EngineName) -> None:
    """The epoch is that of all records, without those that are left out."""
    every = support.write_shards(odd[0].parent / "good", [odd_images.PLAIN] * len(NAMES))
    options: dict[str, Any] = {"recipe": TRAIN, "engine": engine, "drop_remainder": False}
    whole = list(_epoch(_make(every, **options)))
    skipped, repaired = (_epoch(_make(odd, on_error=on_error, **options)) for on_error in ("skip", "repair"))
    assert list(skipped) == [k for k in whole if k not in LEFT_OUT["skip"]]
    assert list(repaired) == [k for k in whole if k not in LEFT_OUT["repair"]]
    assert all(np.array_equal(image, repaired[k]) for k, image in skipped.items())


def test_a_repaired_record_is_another_place_for_the_same_record(odd: list[Path]) -> None:
    dataset, _ = _outcome(tuple(odd), "repair", "tfdata")
    view, patches = dataset.records, dataset.records.shards[len(odd) :]
    assert view.ids.tolist() == view.labels.tolist() == sorted(set(range(len(NAMES))) - set(LEFT_OUT["repair"]))
    assert sorted(view.ids[view.table["shard"] >= len(odd)].tolist()) == REPAIRED
    assert all(path.parent.name == "repaired" for path in patches)
    assert len(view.stamps) == len(view.shards)
    view.check_unchanged()


def test_a_repaired_record_keeps_its_other_features(tmp_path: Path) -> None:
    features: dict[str, support.Value] = {"name": b"x.jpg", "boxes": [0.5, 1.5], "size": [1, 2, 3]}
    payload = support.example({"image": odd_images.IMAGES["gif"], "label": 7, **features})
    path = support.write_shard(tmp_path / "a.tfrecord", [payload])
    view = _make([path], on_error="repair", batch_size=1).records
    row = view.table[0]
    message = tf.train.Example.FromString(
        tfrecord.read_payload(view.shards[row["shard"]], int(row["offset"]), int(row["length"]))
    )
    image = message.features.feature.pop("image").bytes_list.value[0]
    assert image.startswith(b"\x89PNG")
    assert message.features == tf.train.Example.FromString(support.example({"label": 7, **features})).features


@pytest.mark.parametrize("exif", [False, True])
@pytest.mark.parametrize("turn", range(1, 9))
def test_a_repaired_image_is_turned_as_the_recipe_says(tmp_path: Path, exif: bool, turn: int) -> None:
    """A PNG has no orientation that every decoder follows."""
    image = odd_images.after_soi(b"\xff\x00", odd_images.turned(turn))
    view = dp.from_files(support.write_shards(tmp_path, [image], shards=1))
    done = policy.apply(view, "repair", 0, engine="dali", exif=exif, num_threads=1)
    upright = Image.fromarray(tf.io.decode_jpeg(image, channels=3, dct_method="INTEGER_ACCURATE").numpy())
    upright.getexif()[274] = turn
    expected = np.asarray(ImageOps.exif_transpose(upright) if exif else upright)
    (png,) = reader.read_images(done.records, np.array([0]))
    assert np.array_equal(tf.io.decode_png(bytes(png)).numpy(), expected)
    assert done.records.sizes(exif).tolist() == [list(expected.shape[:2])]


def test_a_repaired_image_that_is_turned_looks_like_one_that_need_not_be_repaired(
    tmp_path: Path, engine: EngineName
) -> None:
    turned = odd_images.turned(6)
    recipe = dp.Recipe((dp.CenterCrop(40),), "uint8", exif=True)
    paths = support.write_shards(tmp_path, [odd_images.after_soi(b"\xff\x00", turned), turned], shards=1)
    images = _epoch(_make(paths, recipe, on_error="repair", batch_size=2, engine=engine))
    assert np.array_equal(images[0], images[1])


class TestKept:
    @pytest.fixture(autouse=True)
    def cache_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def test_what_was_repaired_is_not_repaired_again(
        self, odd: list[Path], cache_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = _make(odd, on_error="repair").records
        monkeypatch.setattr(repair, "_mended", None)  # would raise if it were called
        again = _make(odd, on_error="repair").records
        assert again.shards == first.shards
        assert np.array_equal(again.table, first.table)
        assert [p.suffix for p in (cache_folder / "repaired").iterdir()] == [".tfrecord"] * 2  # nothing half-written

    def test_a_patch_that_has_gone_is_made_again(self, odd: list[Path], cache_folder: Path) -> None:
        first = _make(odd, on_error="repair").records
        shutil.rmtree(cache_folder / "repaired")
        assert _make(odd, on_error="repair").records.shards == first.shards
        assert len(list((cache_folder / "repaired").iterdir())) == 2

    def test_a_changed_shard_has_another_patch(self, tmp_path: Path) -> None:
        for image in (odd_images.IMAGES["gif"], odd_images.encode(odd_images.picture(40, 70), "GIF")):
            paths = support.write_shards(tmp_path, [image], shards=1)
            dataset = _make(paths, on_error="repair", batch_size=1)
            with Image.open(io.BytesIO(image)) as opened:
                assert dataset.records.sizes().tolist() == [[opened.height, opened.width]]

    def test_a_cache_that_cannot_be_written_is_an_error(
        self, odd: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(OSError, match=r"cannot be written.*Set DALI_TF_CACHE to a writable folder, or use on_err"):
            _make(odd, on_error="repair")
        assert len(_make(odd, on_error="skip").skipped) == 7

    def test_a_damaged_record_is_not_repaired(self, tmp_path: Path) -> None:
        """Its checksum says that any of its bytes may be wrong, the label's too."""
        (path,) = support.write_shards(tmp_path, [odd_images.PLAIN, odd_images.IMAGES["gif"]], shards=1)
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
        dataset = _make([path], on_error="repair", batch_size=1)
        assert [(f.record, f.cause) for f in dataset.skipped] == [(1, "checksum")]
        assert dataset.repaired == ()

    def test_without_dali_it_does_not_vote_and_is_told_so(
        self, odd: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choice, "dali_fault", lambda: "no such module")
            dataset = _make(odd, on_error="skip")
        assert dataset.engine == "tfdata"
        assert "DALI did not vote on which records are bad" in caplog.text
        assert [f.record for f in dataset.skipped] == LEFT_OUT["repair"]
        caplog.clear()
        assert [f.record for f in _make(odd, on_error="skip", engine="tfdata").skipped] == LEFT_OUT["skip"]
        assert "did not vote" not in caplog.text


class TestMaxBad:
    @pytest.mark.parametrize("on_error", ["skip", "repair"])
    def test_more_is_an_error_that_shows_the_first(self, odd: list[Path], on_error: OnError) -> None:
        with pytest.raises(ValueError, match=r"`max_bad` allows 1\.00% of the records to be left out") as caught:
            _make(odd, on_error=on_error, max_bad=0.01)
        lines = str(caught.value).splitlines()
        count = len(LEFT_OUT[on_error])
        assert f"max_bad=0.01, but {count} of 31 are bad" in lines[0]
        assert f"{odd[1]}, record" in lines[1] and "cannot be decoded by" in lines[1]
        assert len(lines) == (7 if count > 5 else 6)

    def test_as_much_is_not(self, odd: list[Path]) -> None:
        assert len(_make(odd, on_error="skip", max_bad=7 / 31).skipped) == 7
        assert len(_make(odd, on_error="repair", max_bad=5 / 31).skipped) == 5

    def test_nothing_bad_is_within_0(self, photographs: list[Path]) -> None:
        dataset = _make(photographs, on_error="skip", max_bad=0)
        assert (dataset.skipped, dataset.repaired, len(dataset.records)) == ((), (), 50)

    def test_nothing_left_is_an_error(self, tmp_path: Path) -> None:
        paths = support.write_shards(tmp_path, [b"", odd_images.IMAGES["garbage"]], shards=1)
        with pytest.raises(ValueError, match="There is no record to read"):
            _make(paths, on_error="skip", max_bad=1)

    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
    def test_is_a_fraction(self, photographs: list[Path], value: float) -> None:
        for on_error in policy.POLICIES:
            with pytest.raises(ValueError, match="`max_bad` must be a fraction, 0 to 1"):
                _make(photographs, on_error=on_error, max_bad=value)


def test_a_policy_must_be_one(photographs: list[Path]) -> None:
    message = r'`on_error` must be "raise", "skip" or "repair"\. Received: on_error=\'ignore\''
    with pytest.raises(ValueError, match=message):
        _make(photographs, on_error="ignore")
    with pytest.raises(ValueError, match=message):
        tb.from_records(dp.from_files(photographs), recipe=CENTER, batch_size=8, on_error="ignore")  # type: ignore[arg-type]


def test_records_that_break_the_schema_leave_the_others_their_ids(tmp_path: Path, engine: EngineName) -> None:
    def payload(**features: Any) -> bytes:
        return support.example({"image": odd_images.PLAIN, "label": 5, **features})

    breaking = [payload(label=[1, 2]), payload(image=7), b"\xff" * 40, support.example({"label": 1})]
    shards = [
        support.write_shard(tmp_path / f"{k}.tfrecord", [payload(), odd, payload(label=k)])
        for k, odd in enumerate(breaking)
    ]
    with pytest.raises(dp.RecordError, match="must hold one label; it holds 2 values"):
        _make(shards)
    dataset = _make(shards, on_error="skip", engine=engine)
    assert dataset.records.ids.tolist() == [k for k in range(12) if k % 3 != 1]
    assert [f.record for f in dataset.skipped] == [1, 4, 7, 10]
    assert [n for _, labels in dataset for n in labels.numpy().tolist()] == [5, 0, 5, 1, 5, 2, 5, 3]


def test_a_broken_shard_raises_under_every_policy(tmp_path: Path) -> None:
    paths = support.write_shards(tmp_path, [odd_images.PLAIN] * 9)
    os.truncate(paths[1], os.path.getsize(paths[1]) - 1)
    for on_error in policy.POLICIES:
        with pytest.raises(dp.RecordError, match=f"{paths[1].name}, record at byte .* cut short") as caught:
            _make(paths, on_error=on_error)
        assert ("no record can be told here" in str(caught.value)) == (on_error != "raise")


def test_what_was_left_out_is_told(odd: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _make(odd, on_error="repair")
    assert "3 of 31 records are unusable and left out." in caplog.text
    assert "7 records are bad: 2 repaired, 5 left out." in caplog.text


def test_a_part_of_a_view_and_the_rest_of_an_epoch(odd: list[Path]) -> None:
    view = dp.from_files(odd, on_error="skip")
    assert [fault.id for fault in view.faults] == [NAMES.index(n) for n in ("truncated_header", "empty", "garbage")]
    assert view.select(slice(None)).faults == ()
    assert view.exclude([0]).faults == view.faults
    some = tb.from_records(view.take(15), recipe=CENTER, batch_size=4, on_error="skip", max_bad=0.1, engine="tfdata")
    assert [f.record for f in some.skipped] == [NAMES.index("ff00_between_segments")]
    rest = some.rest(0, 2)
    assert (rest.skipped, len(rest)) == (some.skipped, 2)


class TestTFDS:
    @pytest.fixture
    def folder(self, tfds_folder: Path, tmp_path: Path) -> tuple[Path, int]:
        """A copy whose second training shard has no image in its third record; and that record's id."""
        folder = Path(shutil.copytree(tfds_folder, tmp_path / "copy"))
        dataset = tfds_source.read_metadata(folder)
        split = dataset.splits["train"]
        payloads = [raw.numpy() for raw in tf.data.TFRecordDataset([str(split.shards[1])])]
        payloads[2] = support.example({"image": b"nothing", "label": 0})
        support.write_shard(split.shards[1], payloads)
        return folder, split.lengths[0] + 2

    def test_a_bad_record(self, folder: tuple[Path, int]) -> None:
        path, bad = folder
        options: dict[str, Any] = {"recipe": CENTER, "batch_size": 16, "engine": "tfdata"}
        with pytest.raises(dp.RecordError, match="is not an image"):
            tb.from_tfds(path, split="train", **options)
        dataset = tb.from_tfds(path, split="train", on_error="skip", **options)
        assert dataset.records.ids.tolist() == [k for k in range(203) if k != bad]
        assert [f.record for f in dataset.skipped] == [bad]

    def test_slices_are_cut_before_anything_is_left_out(self, folder: tuple[Path, int]) -> None:
        path, bad = folder
        dataset = tfds_source.read_metadata(path)
        for spec, ids, faults in [
            (f"train[:{bad}]", range(bad), []),
            (f"train[:{bad + 1}]", range(bad), [bad]),
            (f"train[{bad}:]", range(bad + 1, 203), [bad]),
            (f"train[{bad + 1}:]", range(bad + 1, 203), []),
            ("validation", range(37), []),
            ("validation+train[:2]", [*range(37), 37, 38], []),
        ]:
            view = tfds_source.open_split(dataset, spec, dataset.schema(), "skip")
            assert view.ids.tolist() == list(ids)
            assert [fault.id for fault in view.faults] == faults

    def test_a_missing_record_is_not_taken_for_a_bad_one(self, folder: tuple[Path, int]) -> None:
        path, _ = folder
        dataset = tfds_source.read_metadata(path)
        shard = dataset.splits["train"].shards[1]
        payloads = [raw.numpy() for raw in tf.data.TFRecordDataset([str(shard)])]
        support.write_shard(shard, payloads[:-1])
        with pytest.raises(dp.RecordError, match=r"holds \d+ records; dataset_info.json says \d+"):
            tfds_source.open_split(dataset, "train", Schema(), "skip")


def test_the_train_command_has_the_policy(odd: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", f"{odd[0].parent}/*.tfrecord*", "--size", "32", "--batch-size", "8"]
    arguments += ["--output", str(tmp_path / "run")]
    assert cli.main(arguments) == 2
    assert "is not an image" in capsys.readouterr().err
    assert cli.main([*arguments, "--on-error", "skip"]) == 2
    assert "`--max-bad` allows 1.00%" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main([*arguments, "--max-bad", "2"])
    assert "must be a fraction, 0 to 1. Received: '2'" in capsys.readouterr().err
    parsed = cli.parser().parse_args([*arguments, "--on-error", "repair", "--max-bad", "0.2"])
    dataset, _ = train._datasets(parsed, *cli_data.recipes(parsed))
    assert len(dataset.records) == 26
    assert train._bad(dataset) == "5 records left out, 2 repaired"
