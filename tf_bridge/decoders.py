"""What each decoder makes of one encoded image: the question behind every bad-image policy."""

import re

import tensorflow as tf

# nvimgcodecStatus_t of nvImageCodec's nvimgcodec.h
_NVIMGCODEC = {"3": "the image is damaged", "4": "this kind of image is not supported", "6": "decoding failed"}


def tensorflow_fault(image: bytes) -> str | None:
    """Why TensorFlow cannot decode it, in one line; None if it can."""
    try:
        if image.startswith(b"\xff\xd8"):
            tf.io.decode_jpeg(image, channels=3)
        else:
            tf.io.decode_image(image, channels=3, expand_animations=False)
    except tf.errors.OpError as error:
        return _one_line(str(error.message))
    return None


def dali_fault(image: bytes) -> str | None:
    """Why DALI on the CPU cannot decode it, in one line; None if it can."""
    import numpy as np
    from nvidia.dali import Pipeline, fn, types

    pipe = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipe:
        encoded = fn.external_source(name="image", dtype=types.UINT8, ndim=1)
        pipe.set_outputs(fn.decoders.image(encoded, device="cpu", output_type=types.RGB))
    pipe.build()
    try:
        pipe.feed_input("image", [np.frombuffer(image, np.uint8)])
        pipe.run()
    except RuntimeError as error:  # the pipeline is of no use any more, and goes
        code = re.search(r"nvImageCodec failure: '#(\d+)'", str(error))
        return _NVIMGCODEC.get(code[1], f"nvImageCodec's status {code[1]}") if code else _one_line(str(error))
    return None


def _one_line(message: str) -> str:
    return re.sub(r"\s*\[Op:\w+\]", "", message.strip().split("\n")[0])[:200]
