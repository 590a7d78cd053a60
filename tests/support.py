"""What tests make: images that show where they were cut, shards, TFDS folders, subprocesses."""

import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

Value = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]


def coordinates(height: int, width: int) -> np.ndarray:
    """An image whose red is the column and whose green is the row, so that a crop's window can be read back.

    Blue tells apart images of different sizes. Sides up to 255 px.
    """
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x, y, np.full_like(x, (height + width) % 256)], axis=-1).astype(np.uint8)


def jpeg(pixels: np.ndarray | Image.Image, **options: object) -> bytes:
    """Encoded without chroma subsampling at the best quality: within two grey levels of `pixels`."""
    out = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(out, "JPEG", **{"quality": 100, "subsampling": 0, **options})
    return out.getvalue()


def photograph(seed: int, height: int, width: int, **options: object) -> bytes:
    """A JPEG with the smooth areas, edges and noise of a photograph."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = np.clip(pixels + rng.integers(-12, 13, pixels.shape), 0, 255).astype(np.uint8)
    return jpeg(noisy, **{"quality": 90, "subsampling": 2, **options})


def example(features: Mapping[str, Value]) -> bytes:
    """A serialized tf.train.Example."""
    message = tf.train.Example()
    for key, value in features.items():
        values = list(value) if isinstance(value, list | tuple) else [value]
        feature = message.features.feature[key]
        if all(isinstance(v, bytes) for v in values):
            feature.bytes_list.value.extend(values)
        elif all(isinstance(v, int) for v in values):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return bytes(message.SerializeToString(deterministic=True))  # test names hold it


def write_shard(path: Path, payloads: Iterable[bytes]) -> Path:
    """A TFRecord file, written by TensorFlow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(os.fspath(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return path


def write_shards(
    folder: Path, images: Sequence[bytes], labels: Sequence[int] | None = None, shards: int = 3
) -> list[Path]:
    """Images in several shards, in order; labels are ids unless given."""
    labels = range(len(images)) if labels is None else labels
    payloads = [example({"image": i, "label": int(n)}) for i, n in zip(images, labels, strict=True)]
    parts = np.array_split(np.arange(len(images)), shards)
    return [
        write_shard(folder / f"data.tfrecord-{k:05d}-of-{shards:05d}", [payloads[i] for i in part])
        for k, part in enumerate(parts)
    ]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def run_forked(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Like `run_python`, in a fork of a process that has TensorFlow and DALI imported, which takes seconds each time.

    The interpreter does not end as usual: for what happens at exit, `run_python` it is. Output goes through `folder`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preload"])
    process = context.Process(target=_execute, args=(code, folder))
    process.start()
    process.join(120)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"still running after 120 s: {(folder / 'stdout').read_text()[-2000:]}")
    out, err = ((folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess([], process.exitcode or 0, out, err)


def _execute(code: str, folder: Path) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    # The forkserver's own streams may not be where a normal process has them.
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    try:
        exec(compile(code, "<forked>", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run_python(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run code in a fresh interpreter: what could take the process down must not take the tests down."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parent.parent,
    )
