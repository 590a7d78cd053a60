"""Each engine's steady speed for the presets, against tf.data as people write it: images/s and host CPU ms per image.

    uv run python -m benchmarks.engines [--rounds 3] [--seconds 4] [--json]

Each case runs in a process of its own, the cases of a round one after the other, on the embedded data set. Compare
figures of one run only, taken on a quiet machine.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

RECIPES = ("crop_train", "imagenet_train")
DTYPES = ("uint8", "float32")
ENGINES = ("dali", "tfdata", "plain")
BATCH = 64


def _plain(folder: str, recipe: str, dtype: str) -> Iterator[Any]:
    """TFDS, `tf.image`, batch, prefetch: whole images decoded, cropped, batched, normalised."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    import dali_pipe as dp

    def crop(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if recipe == "crop_train":
            return tf.image.random_crop(image, (224, 224, 3)), label
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros((1, 0, 4)),
            area_range=(0.08, 1.0),
            min_object_covered=0.0,
            use_image_if_no_bounding_boxes=True,
        )
        resized = tf.image.resize(tf.slice(image, begin, size), (224, 224))
        return tf.cast(tf.image.random_flip_left_right(resized), tf.uint8), label

    def normalize(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return (tf.cast(images, tf.float32) - dp.IMAGENET_MEAN) / dp.IMAGENET_STD, labels

    builder = tfds.builder_from_directory(folder)
    ds = builder.as_dataset(split="train", as_supervised=True, shuffle_files=True).repeat().shuffle(1000)
    ds = ds.map(crop, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True)
    if dtype == "float32":
        ds = ds.map(normalize, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(ds.prefetch(tf.data.AUTOTUNE))


def measure(engine: str, recipe: str, dtype: str, seconds: float) -> dict[str, float]:
    """One case, in this process: after a warm-up, batches for some seconds."""
    import dali_pipe as dp
    import tf_bridge as tb
    from dali_pipe.cache import cache_folder
    from tf_bridge import sample_data

    folder = sample_data.prepare(cache_folder() / "tensorflow_datasets")
    if engine == "plain":
        batches = _plain(str(folder), recipe, dtype)
    else:
        made = getattr(dp, recipe)(224, dtype)
        batches = iter(
            tb.from_tfds(folder, split="train", recipe=made, batch_size=BATCH, seed=0, engine=engine, repeat=True)
        )
    for _ in range(10):
        next(batches)
    cpu, start, images = _cpu(), time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        next(batches)
        images += BATCH
    return {"images_per_second": images / elapsed, "cpu_ms_per_image": 1000 * (_cpu() - cpu) / images}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure all cases, round by round, and print medians and the spread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        engine, recipe, dtype = arguments.case
        print(json.dumps(measure(engine, recipe, dtype, arguments.seconds)))
        return
    cases = [(engine, recipe, dtype) for recipe in RECIPES for dtype in DTYPES for engine in ENGINES]
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(arguments.rounds):
        for case in cases:
            command = [sys.executable, "-m", "benchmarks.engines", "--seconds", str(arguments.seconds), "--case", *case]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            found[case].append(json.loads(done.stdout.splitlines()[-1]))
    rows = [_row(case, rounds) for case, rounds in found.items()]
    if arguments.json:
        print(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1))
        return
    for row in rows:
        print(
            "{recipe:15s} {dtype:8s} {engine:7s} {images:7.0f} img/s ±{spread:4.0f}  {cpu:6.3f} CPU ms/img".format(
                **row
            )
        )


def _row(case: tuple[str, str, str], rounds: list[dict[str, float]]) -> dict[str, Any]:
    engine, recipe, dtype = case
    speeds = [r["images_per_second"] for r in rounds]
    return {
        "recipe": recipe,
        "dtype": dtype,
        "engine": engine,
        "images": statistics.median(speeds),
        "spread": (max(speeds) - min(speeds)) / 2,
        "cpu": statistics.median(r["cpu_ms_per_image"] for r in rounds),
    }


if __name__ == "__main__":
    main()
