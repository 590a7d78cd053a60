"""Whether malloc gives a batch's pages back to the system."""

from pathlib import Path

import pytest

from tests import support

CODE = """
import ctypes
import dali_pipe as dp, tf_bridge as tb

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd us fs used free keep".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
for _ in tb.from_tfrecords({files!r}, recipe=dp.crop_eval(32), batch_size=8, engine="tfdata"):
    pass
before = libc.mallinfo2().hblks
for _ in range(40):
    libc.malloc(20 << 20)  # more than what is free in any heap
print("mapped", libc.mallinfo2().hblks - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "mapped"), [("1", 0), ("0", 40)])
def test_blocks_of_a_batch_s_size_are_kept(photographs: list[Path], keep: str, mapped: int) -> None:
    code = CODE.format(files=[str(path) for path in photographs])
    done = support.run_python(code, DALI_TF_KEEP_PAGES=keep)
    found = int(done.stdout.split()[-1])
    assert (found > 0) == (mapped > 0), done.stdout
