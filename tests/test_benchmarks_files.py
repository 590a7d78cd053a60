"""What the benchmarks write once and keep: the records' images as files, and photographs of other sizes."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dali_pipe as dp
from benchmarks import image_files, photos
from benchmarks.case import Case
from dali_pipe import reader
from tests import support


@pytest.fixture(autouse=True)
def _new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """Seven images in two shards, of classes 1 to 3 in the files."""
    images = [support.photograph(k, 20, 30) for k in range(7)]
    support.write_shards(tmp_path / "shards", images, [1 + k % 3 for k in range(7)], shards=2)
    return Case(pipeline="grain_loader", data=str(tmp_path / "shards" / "*"), label_offset=1)


def _no_work(*_: Any) -> None:
    raise AssertionError("it was written again")


def test_images_as_files(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = image_files.export(case)
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))
    assert names == sorted(f"{k % 3:05d}/{k:08d}.jpg" for k in range(7))
    for path in folder.glob("*/*"):
        assert path.read_bytes() == support.photograph(int(path.stem), 20, 30)
    monkeypatch.setattr(image_files, "_write", _no_work)
    listed = image_files.listing(case)
    assert [(Path(path).name, label) for path, label in listed] == [
        (f"{k:08d}.jpg", label) for label in range(3) for k in range(7) if k % 3 == label
    ]


def test_other_classes_are_other_files(case: Case) -> None:
    assert {path.name for path in image_files.export(case).iterdir()} == {"00000", "00001", "00002"}
    other = image_files.export(replace(case, label_offset=0))
    assert {path.name for path in other.iterdir()} == {"00001", "00002", "00003"}


def test_images_half_written_are_written_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def read(records: dp.Records, places: Any) -> Any:
        calls.append(places)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return reader.read_images(records, places)

    with monkeypatch.context() as patch:
        patch.setattr("benchmarks.image_files.reader.read_images", read)
        with pytest.raises(KeyboardInterrupt):
            image_files.export(case)
    assert len(image_files.listing(case)) == 7


def test_photographs_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "COUNT", 12)
    shards = photos.shards(48)
    records = dp.from_files(shards)
    assert records.labels.tolist() == [k % 10 for k in range(12)]
    for encoded in reader.read_images(records, np.arange(12)):
        assert min(Image.open(io.BytesIO(bytes(encoded))).size) == 48
    monkeypatch.setattr(photos, "_write", _no_work)
    assert photos.shards(48) == shards


def test_a_bar_for_those_who_wait(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "COUNT", 10)
    for stream, shown in ((io.StringIO(), False), (support.Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("DALI_TF_CACHE", str(Path(case.data).parent.parent / f"cache-{shown}"))
        image_files.export(case)
        photos.shards(40)
        assert ("Writing images as files" in stream.getvalue()) == shown
        assert ("Making photographs of 40 px" in stream.getvalue()) == shown
        assert bool(stream.getvalue()) == shown
