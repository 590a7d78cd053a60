"""The API reference, built from the docstrings."""

import subprocess
import sys
from pathlib import Path

import pytest

import dali_pipe
import tf_bridge


@pytest.mark.slow
def test_it_builds_without_warnings_and_has_every_public_name(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "pdoc", "--docformat", "google", "-o", str(tmp_path)]
    done = subprocess.run([*command, "dali_pipe", "tf_bridge"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Warn" not in done.stderr
    for package in (dali_pipe, tf_bridge):
        page = (tmp_path / f"{package.__name__}.html").read_text(encoding="utf-8")
        assert [name for name in package.__all__ if f'id="{name}"' not in page] == []
