"""What each decoder makes of one encoded image: the question behind every bad-image policy."""

import re
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bridge import choice

# nvimgcodecStatus_t of nvImageCodec's nvimgcodec.h
_NVIMGCODEC = {"3": "the image is damaged", "4": "this kind of image is not supported", "6": "decoding failed"}
TENSORFLOW, DALI = "TensorFlow", "DALI"


def available() -> dict[str, str]:
    """Version of each decoder there is, by name."""
    found = {TENSORFLOW: str(tf.__version__)}
    if choice.dali_fault() is None:
        import nvidia.dali

        found[DALI] = str(nvidia.dali.__version__)
    return found


def tensorflow_image(image: bytes) -> tf.Tensor:
    """The image as TensorFlow's accurate decoder has it, `(height, width, 3)` uint8; of an animation the first frame.

    Raises:
        tf.errors.OpError: it cannot decode it.
    """
    if image.startswith(b"\xff\xd8"):
        return tf.io.decode_jpeg(image, channels=3, dct_method="INTEGER_ACCURATE")
    return tf.io.decode_image(image, channels=3, expand_animations=False)


def tensorflow_fault(image: bytes) -> str | None:
    """Why TensorFlow cannot decode it, in one line; None if it can."""
    try:
        tensorflow_image(image)
    except tf.errors.OpError as error:
        return _one_line(str(error.message))
    return None


def dali_fault(image: bytes) -> str | None:
    """Why DALI on the CPU cannot decode it, in one line; None if it can."""
    return DALIDecoder().fault(image)


class DALIDecoder:
    """DALI's decoder on the CPU. For one thread at a time.

    It gets one image at a time: where one of several fails, DALI says nothing of the others, and its decoder may take
    the process down (`pipeline._parsed`). A batch of images of some 30 KB is not faster either.
    """

    def __init__(self) -> None:
        self._pipe: Any = None

    def fault(self, image: bytes) -> str | None:
        """Why it cannot decode the image, in one line; None if it can."""
        self._pipe = self._pipe or _dali_pipeline()
        try:
            self._pipe.feed_input("image", [np.frombuffer(image, np.uint8)])
            self._pipe.run()
        except RuntimeError as error:
            self._pipe = None  # of no use any more
            return _dalis_reason(str(error))
        return None


def _dali_pipeline() -> Any:
    from nvidia.dali import Pipeline, fn, types

    # Nothing runs ahead: what fails has to be the image that was fed last.
    pipe = Pipeline(1, 1, None, prefetch_queue_depth=1, exec_async=False, exec_pipelined=False)
    with pipe:
        encoded = fn.external_source(name="image", dtype=types.UINT8, ndim=1)
        pipe.set_outputs(fn.decoders.image(encoded, device="cpu", output_type=types.RGB))
    pipe.build()
    return pipe


class Panel:
    """All decoders there are, for one thread at a time."""

    def __init__(self) -> None:
        self._ask = {TENSORFLOW: tensorflow_fault}
        if DALI in available():
            self._ask[DALI] = DALIDecoder().fault

    def refusal(self, image: bytes) -> str | None:
        """Which decoders cannot decode the image, and why, in one line; None if all can."""
        faults = {name: fault(image) for name, fault in self._ask.items()}
        line = "; ".join(f"{name}: {fault}" for name, fault in faults.items() if fault)
        return f"cannot be decoded by {line}" if line else None


def _dalis_reason(message: str) -> str:
    """Out of DALI's traceback."""
    if code := re.search(r"nvImageCodec failure: '#(\d+)'", message):
        return _NVIMGCODEC.get(code[1], f"nvImageCodec's status {code[1]}")
    if "Failed to decode sample" in message:
        return "decoding failed"
    return _one_line(message.split("encountered:")[-1])


def _one_line(message: str) -> str:
    without_nodes = re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:\w+\]", "", message)
    return without_nodes.strip().split("\n")[0][:200]
