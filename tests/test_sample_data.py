"""The embedded data set: the same bytes wherever it is made, and made once."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dali_pipe import tfds_source
from tf_bridge import sample_data

COUNTS = {"train": 20, "validation": 10}


@pytest.fixture(scope="module", autouse=True)
def _few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_data, "EXAMPLES", COUNTS)
        patch.setattr(sample_data, "SHARDS", 2)
        yield


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def folder(data_dir: Path) -> Path:
    return sample_data.prepare(data_dir)


def test_its_bytes_are_the_same_elsewhere(folder: Path, tmp_path: Path) -> None:
    first, again = (
        {path.name: path.read_bytes() for path in made.iterdir()} for made in (folder, sample_data.prepare(tmp_path))
    )
    assert first == again


@pytest.mark.parametrize("split", COUNTS)
def test_shards_classes_and_sizes(folder: Path, split: str) -> None:
    dataset = tfds_source.read_metadata(folder)
    records = tfds_source.open_split(dataset, split, dataset.schema())
    assert len(records.shards) == 2
    assert records.classes == tuple(sample_data.PHOTOGRAPHS)
    assert np.bincount(records.labels).tolist() == [COUNTS[split] // 10] * 10
    assert set(records.sizes().min(1)) == {sample_data.SHORTER_SIDE} == {320}


def test_it_is_made_once(
    folder: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sample_data, "_variant", None)  # nobody draws
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert sample_data.prepare(data_dir) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert capsys.readouterr().err == ""
