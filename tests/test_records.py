"""Views of records: what is read out of the shards, what is refused, and selecting from them."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from dali_pipe import RecordError, Records, Schema, from_files, reader, tfrecord
from dali_pipe.image_header import FORMATS
from dali_pipe.records import concatenate
from tests import odd_images, support

IMAGE = support.photograph(0, 30, 40)
MIDDLE = 5  # place of the odd record in a shard of ten


@pytest.fixture
def view(photographs: list[Path]) -> Records:
    return from_files(photographs)


def _payload(**features: Any) -> bytes:
    return support.example({"image": IMAGE, "label": 3, **features})


def _shard(folder: Path, *odd: bytes) -> Path:
    """Good records with odd ones in their middle."""
    good = [_payload()] * MIDDLE
    return support.write_shard(folder / "data.tfrecord", [*good, *odd, *good])


def _refused(path: Path, schema: Schema | None = None) -> str:
    """The reason for which the record in the middle is refused."""
    with pytest.raises(RecordError) as caught:
        from_files(path, schema)
    offset = MIDDLE * (len(_payload()) + 16)
    assert (caught.value.path, caught.value.offset) == (path, offset)
    assert str(caught.value).startswith(f"{path}, record at byte {offset}: ")
    return caught.value.reason


def test_everything_about_a_record_is_found(tmp_path: Path) -> None:
    images = [odd_images.IMAGES["exif_orientation_6"], IMAGE, odd_images.IMAGES["png"]]
    paths = support.write_shards(tmp_path, images, [7, -1, 2**40], shards=2)
    view = from_files(paths)
    assert view.shards == tuple(paths)
    assert view.ids.tolist() == [0, 1, 2]
    assert view.labels.tolist() == [7, -1, 2**40]
    assert view.table["shard"].tolist() == [0, 0, 1]
    assert [FORMATS[kind] for kind in view.table["format"]] == ["jpeg", "jpeg", "png"]
    assert view.table["orientation"].tolist() == [6, 1, 1]
    assert [bytes(image) for image in reader.read_images(view, np.arange(3))] == images
    for row, label in zip(view.table, view.labels.tolist(), strict=True):
        payload = tfrecord.read_payload(paths[row["shard"]], row["offset"], row["length"])
        message = tf.train.Example.FromString(payload)
        assert message.features.feature["label"].int64_list.value == [label]


def test_sizes_are_turned_if_asked_for(tmp_path: Path) -> None:
    images = [odd_images.turned(turn) for turn in range(1, 9)]
    view = from_files(support.write_shards(tmp_path, images))
    assert view.sizes().tolist() == [[48, 64]] * 8
    assert view.sizes(exif=True).tolist() == [[48, 64]] * 4 + [[64, 48]] * 4


def test_labels_count_from_the_offset(tmp_path: Path) -> None:
    paths = support.write_shards(tmp_path, [IMAGE] * 4, [1, 2, 1, 1000])
    assert from_files(paths, Schema(label_offset=1)).labels.tolist() == [0, 1, 0, 999]
    assert from_files(paths, Schema(label_offset=-1)).labels.tolist() == [2, 3, 2, 1001]


def test_a_label_below_the_offset_is_refused(tmp_path: Path) -> None:
    (path,) = support.write_shards(tmp_path, [IMAGE] * 3, [1, 0, 1], shards=1)
    message = r"`label_offset` must be .* label_offset=1, but .*-00001, record at byte \d+, has label 0$"
    with pytest.raises(ValueError, match=message):
        from_files(path, Schema(label_offset=1))


def test_labels_that_begin_at_1_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A network would learn a class that no image has."""
    for first, offset, told in ((1, 0, True), (1, 1, False), (0, 0, False)):
        caplog.clear()
        (path,) = support.write_shards(tmp_path / f"{first}", [IMAGE] * 3, range(first, first + 3), shards=1)
        from_files(path, Schema(label_offset=offset))
        assert ("pass label_offset=1" in caplog.text) == told


@pytest.mark.parametrize(
    ("labels", "offset", "left"),
    [
        ([1, 2, -5, 4, -7], 1, [0, 1, 3]),  # damaged records
        ([5, 6, 0, 8], 5, [0, 1, 3]),
        ([0, -5, -1, 3], 0, [0, 1, 2, 3]),  # nobody said what the first class is
    ],
)
def test_impossible_labels_are_bad_records(tmp_path: Path, labels: list[int], offset: int, left: list[int]) -> None:
    paths = support.write_shards(tmp_path, [IMAGE] * len(labels), labels, shards=2)
    view = from_files(paths, Schema(label_offset=offset), "skip")
    assert view.ids.tolist() == left
    bad = [place for place in range(len(labels)) if place not in left]
    assert [fault.id for fault in view.faults] == bad
    for fault in view.faults:
        said = f"label {labels[fault.id]} is below the first class's, which is `label_offset`={offset}."
        assert fault.reason == said
    if bad:
        told = rf"label {labels[bad[0]]} is below .* \(record {bad[0]} of its split\)\. Leave such records out with"
        with pytest.raises(RecordError, match=told):
            from_files(paths, Schema(label_offset=offset))


@pytest.mark.parametrize(("labels", "offset"), [([0, 1, 2, 3], 1), ([0, 1, 2, 3, 4, 5], 2), ([-3, -2, -9, 4], 1)])
def test_an_offset_that_the_files_do_not_have_is_no_matter_of_records(
    tmp_path: Path, labels: list[int], offset: int
) -> None:
    """They count from 0, or most labels would be below the first class."""
    paths = support.write_shards(tmp_path, [IMAGE] * len(labels), labels)
    with pytest.raises(ValueError, match="`label_offset` must be what the files call the first class"):
        from_files(paths, Schema(label_offset=offset), "skip")


def test_a_bad_record_has_a_number_and_the_way_out_also_from_the_cache(tmp_path: Path) -> None:
    (path,) = support.write_shards(tmp_path, [IMAGE, IMAGE, b""], shards=1)
    told = (
        r"record at byte \d+: feature 'image' must hold one image; it is empty \(record 2 of the shard\)\. "
        'Leave such records out with on_error="skip"; `dali-tf verify` lists them all\\.$'
    )
    for on_error in ("raise", "skip", "raise"):
        if on_error == "raise":
            with pytest.raises(RecordError, match=told):
                from_files(path)
        else:
            assert "record 2" not in from_files(path, on_error="skip").faults[0].reason


@pytest.mark.parametrize("ids", ["x", [1.5, "a"], [None]])
def test_what_is_no_id_is_refused(view: Records, ids: Any) -> None:
    with pytest.raises(TypeError, match=r"`ids` must be ints, as `Records.ids` has them\. Received: ids="):
        view.exclude(ids)


def test_how_many_are_left_out_is_said_in_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from_files(support.write_shards(tmp_path, [IMAGE, b""], shards=1), on_error="skip")
    assert caplog.messages == ["1 of 2 records is unusable and left out."]


def test_without_a_label_key_labels_read_0(tmp_path: Path) -> None:
    path = support.write_shard(tmp_path / "data.tfrecord", [support.example({"image": IMAGE})] * 3)
    assert from_files(path, Schema(label_key=None)).labels.tolist() == [0, 0, 0]


def test_other_keys(tmp_path: Path) -> None:
    payload = support.example({"image/encoded": IMAGE, "image/class/label": 5, "größe": 1})
    path = support.write_shard(tmp_path / "data.tfrecord", [payload])
    view = from_files(path, Schema(image_key="image/encoded", label_key="image/class/label", label_offset=1))
    assert view.labels.tolist() == [4]
    assert from_files(path, Schema(image_key="image/encoded", label_key="größe")).labels.tolist() == [1]


def test_a_missing_key_lists_those_there_are(tmp_path: Path) -> None:
    odd = support.example({"jpeg": IMAGE, "label": 3, "class": 1})
    there = "The record's keys: 'class', 'jpeg', 'label'. Set `image_key` to one of them."
    assert _refused(_shard(tmp_path, odd)) == f"no feature 'image'. {there}"


def test_a_missing_label_says_which_argument(tmp_path: Path) -> None:
    odd = support.example({"image": IMAGE})
    assert _refused(_shard(tmp_path, odd)) == (
        "no feature 'label'. The record's keys: 'image'. Set `label_key` to one of them."
    )


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (_payload(image=7), "feature 'image' must be bytes; it is int64. Set `image_key` to another key."),
        (_payload(image=0.5), "feature 'image' must be bytes; it is float"),
        (_payload(label=0.5), "feature 'label' must be int64; it is float. Set `label_key` to another key."),
        (_payload(label=b"cat"), "feature 'label' must be int64; it is bytes"),
        (_payload(image=[IMAGE, IMAGE]), "feature 'image' must hold one image; it holds 2 values"),
        (_payload(image=b""), "feature 'image' must hold one image; it is empty"),
        (_payload(image=[]), "feature 'image' must hold one image; it holds no values"),
        (_payload(label=[1, 2]), "feature 'label' must hold one label; it holds 2 values"),
        (_payload(label=[1] * 50), "feature 'label' must hold one label; it holds more than 16 values"),
        (support.example({}), "no feature 'image'. The record's keys: none"),
        (b"", "no feature 'image'. The record's keys: none"),
        (b"\xff" * 40, "a number runs past its message"),
        (_payload()[:-3], "a value runs past its message"),
        (_payload(image=b"not an image"), "feature 'image' is not an image: no image format begins with 6e 6f 74 20"),
        (_payload(image=odd_images.IMAGES["truncated_header"]), "feature 'image' is not an image"),
        (_payload(image=odd_images.IMAGES["garbage"]), "feature 'image' is not an image"),
    ],
)
def test_a_bad_record_in_the_middle_is_named(tmp_path: Path, odd: bytes, reason: str) -> None:
    assert reason in _refused(_shard(tmp_path, odd))


def test_an_empty_label_list_is_refused(tmp_path: Path) -> None:
    message = tf.train.Example()
    message.features.feature["image"].bytes_list.value.append(IMAGE)
    message.features.feature["label"].int64_list.SetInParent()
    assert "it holds no values" in _refused(_shard(tmp_path, message.SerializeToString()))


def test_the_first_bad_record_is_the_one_that_is_named(tmp_path: Path) -> None:
    assert "2 values" in _refused(_shard(tmp_path, _payload(label=[1, 2]), _payload(label=[1, 2, 3])))


def test_a_broken_shard_among_good_ones_is_named(tmp_path: Path) -> None:
    paths = support.write_shards(tmp_path, [IMAGE] * 9)
    os.truncate(paths[1], os.path.getsize(paths[1]) - 1)
    with pytest.raises(RecordError, match=f"{paths[1].name}, record at byte .* cut short"):
        from_files(paths)


def _names(view: Records) -> list[str]:
    return [path.name for path in view.shards]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place, name in enumerate(["b.tfrecord", "a.tfrecord", "c[0-9].tfrecord", "c5.tfrecord"]):
        support.write_shard(tmp_path / name, [_payload(label=place)])
    (tmp_path / "d.tfrecord").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tfrecord", ["a.tfrecord"]),
        ("[ab].tfrecord", ["a.tfrecord", "b.tfrecord"]),  # sorted
        ("*.tfrecord", ["a.tfrecord", "b.tfrecord", "c5.tfrecord", "c[0-9].tfrecord"]),  # without the folder
        ("c[0-9].tfrecord", ["c[0-9].tfrecord"]),  # the file of that name, not what it would match
        ("c?.tfrecord", ["c5.tfrecord"]),
    ],
)
def test_from_files_takes_a_path_or_a_pattern(folder: Path, pattern: str, names: list[str]) -> None:
    assert _names(from_files(f"{folder}/{pattern}")) == names
    assert _names(from_files(folder / pattern)) == names


def test_from_files_takes_a_sequence_in_its_order(folder: Path) -> None:
    view = from_files([folder / "b.tfrecord", f"{folder}/c?.tfrecord", f"{folder}/a.tfrecord"])
    assert _names(view) == ["b.tfrecord", "c5.tfrecord", "a.tfrecord"]
    assert view.labels.tolist() == [0, 3, 1]
    assert view.ids.tolist() == [0, 1, 2]


def test_from_files_expands_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert _names(from_files("~/a*.tfrecord")) == ["a.tfrecord"]


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        ("x*.tfrecord", "no file matches this glob"),
        (["a.tfrecord", "x.tfrecord"], "check the path"),
        ("d.tfrecord", "check the path"),
        (".", "this folder holds TFRecord files: give them as a glob, such as './*.tfrecord'"),
    ],
)
def test_from_files_refuses_what_matches_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: str | Sequence[str], hint: str
) -> None:
    monkeypatch.chdir(folder)
    name = files if isinstance(files, str) else files[-1]
    told = f"`files` must match at least one TFRecord file; {hint}. Received: {name!r}"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(told)}$"):
        from_files(files)


def test_from_files_refuses_no_files() -> None:
    with pytest.raises(FileNotFoundError, match=r"`files` must match at least one TFRecord file. Received: \[\]"):
        from_files([])


def test_a_view_says_how_large_it_is(view: Records) -> None:
    assert len(view) == 50
    assert repr(view) == "<Records: 50 records in 3 shards>"


@pytest.mark.parametrize(
    ("select", "ids"),
    [
        (lambda v: v.take(3), [0, 1, 2]),
        (lambda v: v.take(0), []),
        (lambda v: v.take(99).skip(47), [47, 48, 49]),
        (lambda v: v.skip(99), []),
        (lambda v: v.skip(10).take(2), [10, 11]),
        (lambda v: v.select([7, 3, 3]), [7, 3, 3]),
        (lambda v: v.select(v.labels > 47), [48, 49]),
        (lambda v: v.select(slice(None, None, -25)), [49, 24]),
        (lambda v: v.select([]), []),
        (lambda v: v.take(5).exclude([3, 0]), [1, 2, 4]),
        (lambda v: v.take(3).exclude(iter([])), [0, 1, 2]),
        (lambda v: v.take(3).exclude(range(3)), []),
        (lambda v: v.skip(45).exclude({46}), [45, 47, 48, 49]),
        (lambda v: v.split(0.1)[0], [0, 1, 2, 3, 4]),
        (lambda v: v.split(0.93)[1], [46, 47, 48, 49]),  # cut at 46.5, which Python rounds to the even 46
        (lambda v: v.split(1)[1], []),
        (lambda v: v.split(0.0)[0], []),
        (lambda v: concatenate([v.skip(48), v.take(2)]), [48, 49, 0, 1]),
    ],
)
def test_selecting(view: Records, select: Callable[[Records], Records], ids: list[int]) -> None:
    chosen = select(view)
    assert chosen.ids.tolist() == ids
    assert chosen.labels.tolist() == ids  # whose labels are ids
    assert (len(chosen), chosen.shards, chosen.schema) == (len(ids), view.shards, view.schema)


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (lambda v: v.take(-1), "`count` must not be negative. Received: count=-1"),
        (lambda v: v.skip(-1), "`count` must not be negative"),
        (lambda v: v.split(1.1), r"`fraction` must be in \[0, 1\]. Received: fraction=1.1"),
        (lambda v: v.split(-0.1), "`fraction` must be"),
        (lambda v: v.exclude([3, 50, -1]), r"`ids` must be of records in this view. Received: \[-1, 50\]"),
        (lambda v: v.take(3).exclude([3]), r"Received: \[3\]"),
    ],
)
def test_selecting_refuses(view: Records, select: Callable[[Records], Records], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(view)


def test_splits_are_the_whole_and_disjoint(view: Records) -> None:
    for fraction in np.linspace(0, 1, 23):
        first, rest = view.split(float(fraction))
        assert first.ids.tolist() + rest.ids.tolist() == list(range(50))


def test_a_selection_leaves_its_view_alone(view: Records) -> None:
    view.select([1, 2]).table["label"] = 99
    assert view.labels.tolist() == list(range(50))


def test_where_names_shard_and_offset(view: Records) -> None:
    assert view.select([49]).where(0) == f"{view.shards[2]}, record at byte {view.table['offset'][49]}"


def test_the_reader_reads_any_order(view: Records) -> None:
    places = np.random.default_rng(0).integers(0, 50, 200)
    images = [bytes(image) for image in reader.read_images(view, places)]
    assert images == [support.photograph(k, 40 + 7 * k % 90, 40 + 11 * k % 120) for k in places.tolist()]


def test_the_reader_reads_nothing_for_no_places(view: Records) -> None:
    assert list(reader.read_images(view, np.arange(0))) == []


def test_the_reader_names_a_shard_that_changed(tmp_path: Path) -> None:
    paths = support.write_shards(tmp_path, [IMAGE] * 9)
    view = from_files(paths)
    os.utime(paths[1], ns=(0, 10**9))
    assert len(list(reader.read_images(view, np.array([0, 8])))) == 2
    with pytest.raises(RecordError, match=f"{paths[1].name}: the shard has changed since it was scanned"):
        list(reader.read_images(view, np.array([0, 4, 8])))


def test_the_reader_names_the_record_where_a_shard_ends_meanwhile(tmp_path: Path) -> None:
    (path,) = support.write_shards(tmp_path, [IMAGE] * 3, shards=1)
    view = replace(from_files(path), stamps=())  # as if it were cut after its status was looked at
    os.truncate(path, view.table["offset"][1] + 40)
    assert bytes(reader.read_images(view, np.array([0]))[0]) == IMAGE
    with pytest.raises(RecordError, match=f"record at byte {view.table['offset'][1]}: .*became shorter"):
        list(reader.read_images(view, np.array([0, 1])))


@pytest.mark.parametrize("select", [lambda v: v, lambda v: v.take(1), lambda v: v.exclude([0])])
def test_a_view_knows_whether_its_shards_are_the_same(tmp_path: Path, select: Callable[[Records], Records]) -> None:
    paths = support.write_shards(tmp_path, [IMAGE] * 9)
    view = select(from_files(paths))
    view.check_unchanged()
    support.write_shards(tmp_path, [IMAGE + b"x"] * 9)
    with pytest.raises(RecordError, match=f"{paths[0].name}: the shard has changed .* Make the data set again"):
        view.check_unchanged()
    paths[0].unlink()
    with pytest.raises(FileNotFoundError, match=paths[0].name):
        view.check_unchanged()


def test_the_reader_names_a_shard_that_has_gone(tmp_path: Path) -> None:
    paths = support.write_shards(tmp_path, [IMAGE] * 9)
    view = from_files(paths)
    paths[2].unlink()
    with pytest.raises(FileNotFoundError, match=paths[2].name):
        list(reader.read_images(view, np.arange(9)))
