"""Slices of a file that is read a page at a time."""

import os
import random
from pathlib import Path

import pytest

from dali_pipe.pages import open_pages

CONTENT = random.Random(0).randbytes(5000)


@pytest.fixture(params=["pread", "seek"])
def path(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "seek":
        monkeypatch.delattr(os, "pread")  # as on Windows
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("page", [1, 12, 100, 4096, 10_000])
def test_slices_are_those_of_the_bytes(path: Path, page: int) -> None:
    rng = random.Random(page)
    with open_pages(path, page) as pages:
        assert len(pages) == 5000
        for _ in range(2000):
            start = rng.randrange(5200)
            stop = start + rng.choice([0, 1, 10, 300, 6000])
            assert pages[start:stop] == CONTENT[start:stop]


def test_little_more_is_read_than_is_asked_for(path: Path) -> None:
    os.truncate(path, 1 << 40)
    with open_pages(path) as pages:
        assert len(pages) == 1 << 40
        assert pages[0:10] == CONTENT[:10]
        assert pages[1 << 39 : (1 << 39) + 3] == bytes(3)


def test_a_file_cut_short_meanwhile_gives_short_slices(path: Path) -> None:
    with open_pages(path, page=16) as pages:
        os.truncate(path, 2000)
        assert pages[1990:2010] == CONTENT[1990:2000]
        assert pages[4000:4010] == b""
        assert len(pages) == 5000
