"""The scan of a shard is kept, and never outlives the shard it was made of."""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_pipe import cache, pages, records, scan, tfrecord
from dali_pipe.scan import Schema
from tests import support

SCHEMA = Schema()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


LABELS = list(range(200, 230))


def _write(path: Path, changed: Sequence[int] = ()) -> Path:
    """A shard of some 20 KB; the labels at the places `changed` are others, and nothing else is."""
    labels = [label + 300 * (place in changed) for place, label in enumerate(LABELS)]
    images = [support.photograph(k, 30, 40) for k in range(len(labels))]
    return support.write_shard(
        path, [support.example({"image": i, "label": n}) for i, n in zip(images, labels, strict=True)]
    )


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return _write(tmp_path / "data.tfrecord")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Shards that are read, as often as they are."""
    found: list[Path] = []

    def counted(path: Path) -> Any:
        found.append(path)
        return pages.open_pages(path)

    monkeypatch.setattr("dali_pipe.scan.open_pages", counted)
    return found


def _labels(path: Path) -> list[int]:
    labels: list[int] = scan.scan_shard(path, SCHEMA).table["label"].tolist()
    return labels


def _entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_second_scan_does_not_read_the_shard(shard: Path, reads: list[Path]) -> None:
    first = scan.scan_shard(shard, SCHEMA).table
    second = scan.scan_shard(shard, SCHEMA).table
    assert reads == [shard]
    np.testing.assert_array_equal(first, second)
    assert second.dtype == scan.RECORD


def test_a_relative_path_or_a_link_finds_the_same_entry(
    shard: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _labels(shard)
    monkeypatch.chdir(shard.parent)
    os.symlink(shard, "link.tfrecord")
    assert _labels(Path(shard.name)) == _labels(Path("link.tfrecord")) == LABELS
    assert reads == [shard]


def _keeping_time(path: Path, changed: Sequence[int]) -> None:
    status = os.stat(path)
    _write(path, changed)
    assert os.stat(path).st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _in_its_first_record(path: Path) -> None:
    _keeping_time(path, [0])


def _in_its_last_record(path: Path) -> None:
    _keeping_time(path, [len(LABELS) - 1])


def _in_the_middle(path: Path) -> None:
    """Far from both ends, where only the time of modification tells."""
    _write(path, [15])
    os.utime(path, ns=(0, 10**9))


def _for_another_file(path: Path) -> None:
    """With the same time, size and ends: only the inode tells."""
    status, other = os.stat(path), _write(path.with_suffix(".other"), [15])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.rename(other, path)


@pytest.mark.parametrize("change", [_in_its_first_record, _in_its_last_record, _in_the_middle, _for_another_file])
def test_a_changed_shard_is_scanned_again(shard: Path, reads: list[Path], change: Callable[[Path], None]) -> None:
    before = _labels(shard)
    change(shard)
    after = _labels(shard)
    assert reads == [shard, shard]
    assert after != before
    assert _labels(shard) == after
    assert reads == [shard, shard]


def test_a_shard_that_breaks_later_is_refused(shard: Path) -> None:
    _labels(shard)
    os.truncate(shard, os.path.getsize(shard) - 1)
    with pytest.raises(tfrecord.RecordError, match="cut short"):
        _labels(shard)


BROKEN = {
    "empty": b"",
    "garbage": b"\x93garbage" * 40,
    "a text": b"<html>404</html>",
    "a zip without its end": b"PK\x03\x04" + bytes(100),
    "a pickle": b"\x80\x04K\x05.",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_entry_is_made_again(
    shard: Path, reads: list[Path], cache_folder: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    _labels(shard)
    (entry,) = _entries(cache_folder)
    entry.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert _labels(shard) == LABELS
    assert f"Scanning {shard} again: its cache entry {entry} is unreadable" in caplog.text
    assert _labels(shard) == LABELS
    assert reads == [shard, shard]


def test_a_truncated_entry_is_made_again(shard: Path, reads: list[Path], cache_folder: Path) -> None:
    _labels(shard)
    (entry,) = _entries(cache_folder)
    os.truncate(entry, os.path.getsize(entry) // 2)
    assert _labels(shard) == LABELS
    assert reads == [shard, shard]


def test_an_entry_of_another_layout_is_made_again(shard: Path, reads: list[Path]) -> None:
    """As an older release might have left it, had it forgotten to count up the format version."""
    kind = f"headers\0{SCHEMA.image_key}\0{SCHEMA.label_key}"
    cache.store(shard, kind, cache.fingerprint(shard), {"table": np.zeros(30, [("id", "i8"), ("label", "i4")])})
    assert _labels(shard) == LABELS
    assert reads == [shard]


def test_a_cache_that_cannot_be_written_only_logs(
    shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        assert _labels(shard) == LABELS
    assert f"The scan of {shard} is not kept" in caplog.text
    assert "Set DALI_TF_CACHE to a writable folder" in caplog.text


def test_a_full_disk_only_logs_and_leaves_nothing(
    shard: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert _labels(shard) == LABELS
    assert "No space left on device" in caplog.text
    assert _entries(cache_folder) == []


def test_entries_differ_by_what_was_asked(tmp_path: Path, cache_folder: Path) -> None:
    image, other = support.photograph(0, 30, 40), support.photograph(1, 50, 60)
    payload = support.example({"image": image, "image2": other, "label": 1, "label2": 2})
    shard = support.write_shard(tmp_path / "data.tfrecord", [payload])
    schemas = [Schema(), Schema(image_key="image2"), Schema(label_key="label2"), Schema(label_key=None)]
    for _ in range(2):
        rows = [scan.scan_shard(shard, schema).table[0] for schema in schemas]
        assert [(row["label"], row["height"]) for row in rows] == [(1, 30), (1, 50), (2, 30), (0, 30)]
    assert len(_entries(cache_folder)) == 4


def test_entries_do_not_differ_by_the_label_offset(shard: Path, cache_folder: Path) -> None:
    for offset in (0, 200):
        view = records.from_files(shard, Schema(label_offset=offset))
        assert view.labels.tolist() == [label - offset for label in LABELS]
    assert len(_entries(cache_folder)) == 1


def test_another_format_version_has_other_entries(
    shard: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _labels(shard)
    monkeypatch.setattr(cache, "FORMAT_VERSION", cache.FORMAT_VERSION + 1)
    _labels(shard)
    assert reads == [shard, shard]


SCAN = """
import zlib
from dali_pipe import from_files
view = from_files({pattern!r})
print(len(view), zlib.crc32(view.table.tobytes()))
"""


def test_many_processes_at_once(tmp_path: Path, cache_folder: Path, reads: list[Path]) -> None:
    for k in range(6):
        _write(tmp_path / f"data-{k}.tfrecord", [k])
    code = SCAN.format(pattern=f"{tmp_path}/data-*.tfrecord")
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(support.run_python, [code] * 4))
    assert [(process.returncode, process.stderr) for process in done] == [(0, "")] * 4
    assert len({process.stdout for process in done}) == 1
    assert len(records.from_files(f"{tmp_path}/data-*.tfrecord")) == 180
    assert reads == []  # their entries hold here
    assert len(_entries(cache_folder)) == 6  # and nothing half-written is left


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"DALI_TF_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/dali-tf"),
        ({"HOME": "/c"}, "/c/.cache/dali-tf"),
        ({"XDG_CACHE_HOME": "", "DALI_TF_CACHE": "", "HOME": "/c"}, "/c/.cache/dali-tf"),
    ],
)
def test_where_the_cache_is(variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DALI_TF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache.cache_folder() == Path(folder)
