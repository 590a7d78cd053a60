"""What `odd_images` says of TensorFlow and DALI is so."""

import numpy as np
import pytest
import tensorflow as tf
from nvidia.dali import Pipeline, fn, types

from tests import odd_images


@pytest.mark.parametrize("name", odd_images.IMAGES)
def test_tensorflow(name: str) -> None:
    data = odd_images.IMAGES[name]
    if name in odd_images.TF_REFUSES:
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.io.decode_jpeg(data, channels=3)
    else:
        assert tf.io.decode_jpeg(data, channels=3).shape[-1] == 3


def _dali(data: bytes) -> tuple[int, ...]:
    pipe = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipe:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        pipe.set_outputs(fn.decoders.image(encoded, device="cpu"))
    pipe.build()
    pipe.feed_input("encoded", [np.frombuffer(data, np.uint8)])
    return tuple(pipe.run()[0].at(0).shape)


@pytest.mark.parametrize("name", odd_images.IMAGES)
def test_dali(name: str) -> None:
    data = odd_images.IMAGES[name]
    if name in odd_images.DALI_REFUSES:
        with pytest.raises(RuntimeError):
            _dali(data)
    else:
        assert _dali(data)[-1] == 3
