"""Data that may only be read, by somebody who may write nowhere but where he says: as on a cluster's shared disk."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import odd_images, support

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

# Imports everything once while it can: Python itself may lie in a folder of root's.
CODE = """
import os, pathlib
import dali_pipe as dp, tf_bridge as tb
from tf_bridge import cli
recipe = dp.crop_train(32, 'uint8')

def shards(folder):
    return sorted(str(path) for path in pathlib.Path(folder).glob('*.tfrecord*'))

def epoch(folder, **options):
    dataset = tb.from_tfrecords(shards(folder), recipe=recipe, batch_size=4, drop_remainder=False, seed=0, **options)
    return sorted(int(n) for _, labels in dataset for n in labels)

os.environ['DALI_TF_CACHE'] = {warm!r} + '/cache'
for engine in ('dali', 'tfdata'):
    epoch({warm!r}, engine=engine, on_error='repair', max_bad=0.5)
cli.main(['verify', {warm!r} + '/*.tfrecord*'])
os.setgroups([])
os.setresgid(*[{nobody}] * 3)
os.setresuid(*[{nobody}] * 3)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def data(open_folder: Path) -> Path:
    """Ten images, of which DALI cannot read the fourth and nobody the seventh; root's, and not to be written."""
    images = [support.photograph(k, 48, 56) for k in range(10)]
    images[3], images[6] = odd_images.IMAGES["ff00_between_segments"], odd_images.IMAGES["truncated_half"]
    folder = open_folder / "data"
    for path in support.write_shards(folder, images, shards=2):
        path.chmod(0o444)
    folder.chmod(0o555)
    return folder


def _as_nobody(code: str, data: Path, cache: Path, tmp_path: Path) -> str:
    """What the code prints, run by a user who owns `cache` alone."""
    shutil.copytree(data, tmp_path / "warm")
    (tmp_path / "warm").chmod(0o755)
    start = CODE.format(warm=str(tmp_path / "warm"), nobody=NOBODY)
    places = f"data, cache = {str(data)!r}, {str(cache)!r}\nos.environ['DALI_TF_CACHE'] = cache\n"
    done = support.run_forked(start + places + code, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_reading_repairing_and_verifying(data: Path, open_folder: Path, tmp_path: Path) -> None:
    cache = open_folder / "cache"
    cache.mkdir()
    os.chown(cache, NOBODY, NOBODY)
    code = """
try:
    open(data + '/new', 'w')
except PermissionError:
    print('READ-ONLY')
for engine in ('dali', 'tfdata'):
    assert epoch(data, engine=engine, on_error='repair', max_bad=0.1) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert epoch(data, engine=engine, on_error='skip', max_bad=0.2) == [0, 1, 2, 4, 5, 7, 8, 9]
    try:
        epoch(data, engine=engine)
    except Exception as error:
        assert 'record at byte' in str(error), error
        print('RAISED')
assert cli.main(['verify', data + '/*.tfrecord*']) == 1
"""
    told = _as_nobody(code, data, cache, tmp_path)
    assert "READ-ONLY" in told
    assert told.count("RAISED") == 2
    assert "Bad:     2 (20.00%)" in told
    kept = [path for path in cache.rglob("*") if path.is_file()]
    assert kept and {path.stat().st_uid for path in kept} == {NOBODY}
    assert len(list(data.iterdir())) == 2


def test_without_a_cache_of_ones_own(data: Path, open_folder: Path, tmp_path: Path) -> None:
    """All works but what has to be written, which says where it would be."""
    cache = open_folder / "cache"
    cache.mkdir(mode=0o555)
    code = """
for engine in ('dali', 'tfdata'):
    assert epoch(data, engine=engine, on_error='skip', max_bad=0.2) == [0, 1, 2, 4, 5, 7, 8, 9]
    try:
        epoch(data, engine=engine, on_error='repair', max_bad=0.2)
    except OSError as error:
        assert 'Set DALI_TF_CACHE to a writable folder, or use on_error="skip"' in str(error), error
        print('RAISED')
assert cli.main(['verify', data + '/*.tfrecord*']) == 1
"""
    assert _as_nobody(code, data, cache, tmp_path).count("RAISED") == 2
    assert not list(cache.iterdir())
