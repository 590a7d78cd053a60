"""Index files: the lines DALI will follow, and what becomes of the files."""

import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_pipe import Records, from_files, index_files
from dali_pipe.index_files import IndexFiles
from tests import support

Span = tuple[str, int, int]  # shard, offset, length


@pytest.fixture
def view(photographs: list[Path]) -> Records:
    return from_files(photographs)


@pytest.fixture
def index(view: Records) -> IndexFiles:
    return IndexFiles(view)


def _followed(shards: list[str], index: list[str]) -> list[Span]:
    """What a reader reads that goes through the files line by line."""
    spans = []
    for shard, file in zip(shards, index, strict=True):
        lines = [line.split(" ") for line in Path(file).read_text().splitlines()]
        spans += [(shard, int(offset), int(length)) for offset, length in lines]
    return spans


def _wanted(view: Records, order: Any) -> list[Span]:
    rows = view.table[np.asarray(order)]
    return [(str(view.shards[row["shard"]]), int(row["offset"]), int(row["length"])) for row in rows]


def _folder(files: IndexFiles) -> Path:
    return Path(files.write(np.array([0]))[1][0]).parent


ORDERS = {
    "the view's": np.arange(50),
    "reversed": np.arange(50)[::-1],
    "a permutation": np.random.default_rng(0).permutation(50),
    "a stride": np.arange(50)[1::3],
    "blocks": np.concatenate([np.arange(at, at + 10) for at in (30, 0, 40, 10, 20)]),
    "one record": np.array([49]),
    "with the last repeated": np.array([3, 4, 5, 5, 5]),
    "two epochs": np.concatenate([np.random.default_rng(k).permutation(50) for k in (1, 2)]),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_lines_follow_the_order(view: Records, index: IndexFiles, order: Any) -> None:
    assert _followed(*index.write(order)) == _wanted(view, order)


def test_the_lines_of_a_selection_follow_its_order(view: Records) -> None:
    part = view.exclude(range(10, 20)).select(np.arange(39, -1, -1))
    order = np.random.default_rng(0).permutation(40)
    assert _followed(*IndexFiles(part).write(order)) == _wanted(part, order)


def test_neighbours_share_a_file_and_shards_do_not(index: IndexFiles) -> None:
    shards, files = index.write(np.arange(50))
    assert len(files) == len(shards) == 3
    _, files = index.write(ORDERS["blocks"])
    assert [len(Path(file).read_text().splitlines()) for file in files] == [4, 6, 10, 10, 7, 13]


def test_shards_are_named_absolutely(photographs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photographs[0].parent)
    files = IndexFiles(from_files([path.name for path in photographs]))
    monkeypatch.chdir("/")
    assert files.write(np.arange(50))[0] == [str(path) for path in photographs]


def test_the_next_epoch_finds_its_files_written(index: IndexFiles) -> None:
    def inodes(order: Any) -> dict[str, int]:
        return {file: os.stat(file).st_ino for file in index.write(order)[1]}

    first = inodes(np.arange(50)[::-1])
    second = inodes(np.concatenate([np.arange(1, 50, 2), np.arange(0, 50, 2)]))
    assert len(first) == 50
    assert first == second
    assert len(list(_folder(index).iterdir())) == 50 + 1  # the lock


def _open_files(folder: Path) -> list[Path]:
    opened = [Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd")]
    return [file.readlink() for file in opened if file.is_symlink() and file.readlink().parent == folder]


def test_the_folder_goes_with_the_object(view: Records) -> None:
    files = IndexFiles(view)
    folder = _folder(files)
    assert folder.is_dir()
    assert len(_open_files(folder)) == 1
    del files
    gc.collect()
    assert not folder.exists()
    assert _open_files(folder) == []


def test_two_objects_have_two_folders(view: Records, index: IndexFiles) -> None:
    other = IndexFiles(view.skip(1))
    assert _folder(other) != _folder(index)
    assert _followed(*other.write(np.array([0]))) == _wanted(view, [1])
    assert _followed(*index.write(np.array([0]))) == _wanted(view, [0])


def test_without_a_tmpfs_the_temporary_folder_serves(
    view: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = IndexFiles(view)
    assert _folder(files).parent == tmp_path
    assert _followed(*files.write(np.arange(50))) == _wanted(view, np.arange(50))


HOLD = """
import sys
import numpy as np
from dali_pipe import from_files
from dali_pipe.index_files import IndexFiles
files = IndexFiles(from_files({shards!r}))
print(files.write(np.array([0]))[1][0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(photographs: list[Path]) -> Iterator["subprocess.Popen[str]"]:
    """A process that has index files until its input ends."""
    code = HOLD.format(shards=[str(path) for path in photographs])
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        if process.poll() is None:
            process.kill()


def _held(holder: "subprocess.Popen[str]") -> Path:
    assert holder.stdout is not None
    return Path(holder.stdout.readline().strip()).parent


def test_what_a_killed_process_left_is_swept(holder: "subprocess.Popen[str]", view: Records) -> None:
    folder = _held(holder)
    IndexFiles(view)
    assert folder.is_dir()  # while it lives
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert folder.is_dir()
    IndexFiles(view)
    assert not folder.exists()


def test_a_process_that_ends_takes_its_folder_along(holder: "subprocess.Popen[str]") -> None:
    folder = _held(holder)
    assert folder.is_dir()
    holder.communicate("")
    assert holder.returncode == 0
    assert not folder.exists()


FORK = """
import atexit, os, sys
import numpy as np
from dali_pipe import from_files
from dali_pipe.index_files import IndexFiles
records = from_files({shards!r})
files = IndexFiles(records)
index = files.write(np.arange(50)[::-1])[1]
folder = os.path.dirname(index[0])
print(folder, flush=True)
atexit.register(lambda: print(os.getpid(), "ends", flush=True))  # so that it is known to run
child = os.fork()
if child == 0:
    {child}
    sys.exit(0)
assert os.waitpid(child, 0) == (child, 0)
IndexFiles(records)  # sweeps what nobody holds
assert all(map(os.path.exists, index)), "the child took the folder along"
assert files.write(np.arange(50)[::-1])[1] == index
"""


@pytest.mark.parametrize(
    "child", ["pass", "del files", "IndexFiles(records)", "files = IndexFiles(records)"], ids=lambda code: code
)
def test_a_forked_child_leaves_its_parents_folder_alone(photographs: list[Path], child: str) -> None:
    """It inherits the object, and ends in the usual way."""
    done = support.run_python(FORK.format(shards=[str(path) for path in photographs], child=child))
    assert done.returncode == 0, done.stderr
    folder, *ends = done.stdout.splitlines()
    assert len({end.split()[0] for end in ends}) == 2  # processes
    assert not Path(folder).exists()  # it went with the parent
    assert done.stderr == ""


def test_a_folder_in_the_making_is_not_swept(view: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that starts at the same moment finds a folder whose lock is not yet held."""
    make, lock, parent = tempfile.mkdtemp, fcntl.flock, str(_folder(IndexFiles(view)).parent)

    def make_then_meet(**options: Any) -> str:
        folder: str = make(**options)
        index_files._sweep(parent)
        return folder

    def meet_then_lock(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX:
            index_files._sweep(parent)
        lock(file, how)

    monkeypatch.setattr(tempfile, "mkdtemp", make_then_meet)
    monkeypatch.setattr(fcntl, "flock", meet_then_lock)
    assert _followed(*IndexFiles(view).write(np.arange(50))) == _wanted(view, np.arange(50))
