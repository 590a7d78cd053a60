"""Where the system is less than Linux: what Windows and macOS lack is taken away, and reading and measuring work."""

from pathlib import Path

import pytest

from tests import support

# Windows has none of these; macOS has no `sched_getaffinity`, and no /proc either.
_LESS = """
import os, pathlib, sys

for name in ("pread", "preadv", "sysconf", "getloadavg", "sched_getaffinity", "posix_fadvise", "killpg", "fork"):
    delattr(os, name)
sys.modules["resource"] = sys.modules["fcntl"] = sys.modules["nvidia"] = None

import numpy as np

import dali_pipe as dp
from dali_pipe import reader
from tf_bridge import machine, measure

measure.Path = machine.Path = lambda path: pathlib.Path("/nowhere") / path.strip("/")
"""
_READ = """
records = dp.from_files(DATA)
images = reader.read_images(records, np.array([7, 0, 3]))
assert [image[:2].tobytes() for image in images] == 3 * [bytes.fromhex("ffd8")]
speed = measure.measure([(image, records.labels) for image in images], warm_up=0.0, seconds=0.01)
assert speed.images_per_second > 0 and speed.cpu_ms_per_image > 0 and speed.peak_memory_mb is None
found = machine.describe()
assert found["cores"] >= 1 and found["memory_gb"] is None and found["load_before"] is None
assert "load" not in machine.one_line(found)
"""
_EPOCH = """
import tf_bridge as tb

train = tb.from_tfrecords(DATA, recipe=dp.crop_train(16, "uint8"), batch_size=4, seed=0)
assert (train.engine, train.device) == ("tfdata", "cpu"), train.reason
assert sorted(int(label) for _, labels in train for label in labels) == list(range(8))
assert measure.measure(train, warm_up=0.0, seconds=0.01).images >= 4
"""


@pytest.mark.parametrize("code", [_READ, pytest.param(_EPOCH, marks=pytest.mark.slow)], ids=["read", "epoch"])
def test_no_more_than_windows_has(code: str, tmp_path: Path) -> None:
    support.write_shards(tmp_path, [support.photograph(k, 24 + k, 30) for k in range(8)], shards=2)
    done = support.run_python(f"{_LESS}\nDATA = {str(tmp_path / '*')!r}\n{code}")
    assert done.returncode == 0, done.stderr
