"""`dali-tf bench`: which engine, dtype and threads are fastest on this machine and data, in two minutes or so.

`python -m benchmarks`, in the repository, is the thorough version: more pipelines, each in a process of its own.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf
from tqdm import tqdm

import dali_pipe as dp
from dali_pipe.device import DeviceName, available_cores
from dali_pipe.recipe import DType
from tf_bridge import cli_data, machine, measure
from tf_bridge.choice import EngineName, dali_device, dali_fault
from tf_bridge.columns import columns
from tf_bridge.dataset import from_records

WARM_UP = 0.5  # seconds
ALIKE = 0.03  # what a quiet machine repeats within: less is no reason for more threads
WORTH_IT = 0.1  # what a larger batch must gain to be spoken of: it is not free, training changes with it
PLAIN = "plain tf.data"


class Setting(NamedTuple):
    """What a data set is made with; `engine` None is tf.data as people write it."""

    engine: EngineName | None
    device: DeviceName
    dtype: DType
    threads: int
    batch_size: int

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.engine} on {self.device}" if self.engine else PLAIN


@dataclass
class Candidate:
    """A setting, its data set, and what each round gave."""

    setting: Setting
    dataset: Any
    speeds: list[measure.Speed] = field(default_factory=list)

    def median(self, name: str) -> float:
        """A figure of `measure.Speed`, over the rounds."""
        return float(statistics.median(getattr(speed, name) for speed in self.speeds))

    @property
    def speed(self) -> float:
        """Images a second."""
        return self.median("images_per_second")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print as the arguments say; returns the exit code."""
    records, _ = cli_data.open_records(arguments)
    threads = arguments.threads or available_cores()
    settings = [
        Setting(engine, device, dtype, threads, arguments.batch_size)
        for dtype in ("uint8", "float32")
        for engine, device in (*engines(), (None, "cpu"))
    ]
    found = compare(records, settings, arguments)
    best = max((one for one in found if one.setting.engine), key=lambda one: one.speed)
    others = compare(records, _variations(best.setting, len(records)), arguments)
    advised = advise([best, *others])
    print(json.dumps(summary(found, others, advised), indent=2) if arguments.json else text(found, others, advised))
    return 0


def engines() -> list[tuple[EngineName, DeviceName]]:
    """The engines there are here, on the devices there are."""
    usable: list[tuple[EngineName, DeviceName]] = [("tfdata", "cpu")]
    if not dali_fault():
        usable.insert(0, ("dali", "cpu"))
        if dali_device().kind == "gpu":
            usable.insert(0, ("dali", "gpu"))
    return usable


def compare(records: dp.Records, settings: Sequence[Setting], arguments: argparse.Namespace) -> list[Candidate]:
    """Measure each setting in each round, in turn: what drifts on the machine drifts for all."""
    recipe, _ = cli_data.recipes(argparse.Namespace(**{**vars(arguments), "dtype": "uint8"}))
    candidates = [Candidate(setting, _dataset(records, recipe, setting)) for setting in settings]
    turns = tqdm(candidates * arguments.rounds, "Measuring", unit=" settings", leave=False, disable=None)
    for candidate in turns:
        turns.set_postfix_str(candidate.setting.name)
        candidate.speeds.append(measure.measure(candidate.dataset, warm_up=WARM_UP, seconds=arguments.seconds))
    return candidates


def _dataset(records: dp.Records, recipe: dp.Recipe, setting: Setting) -> Any:
    recipe = recipe.with_dtype(setting.dtype)
    if setting.engine is None:
        return plain(records, recipe, setting.batch_size)
    return from_records(
        records,
        recipe=recipe,
        batch_size=setting.batch_size,
        seed=0,
        engine=setting.engine,
        device=setting.device,
        num_threads=setting.threads,
    )


def plain(records: dp.Records, recipe: dp.Recipe, batch_size: int) -> Any:
    """tf.data as people write it: whole images decoded, cropped, batched, normalised on the host.

    It reads the shards of `records` whole, whatever the view leaves out.
    """
    height, width, _ = recipe.output_shape
    resized = isinstance(recipe.ops[0], dp.RandomResizedCrop)
    image_key, label_key, normalize = records.schema.image_key, records.schema.label_key, recipe.normalize

    def load(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features: dict[str, Any] = {image_key: tf.io.FixedLenFeature([], tf.string)}
        if label_key:
            features[label_key] = tf.io.FixedLenFeature([], tf.int64)
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_image(example[image_key], channels=3, expand_animations=False)
        label = example[label_key] - records.schema.label_offset if label_key else tf.constant(0, tf.int64)
        return _resized_crop(image, height, width) if resized else _crop(image, height, width), label

    def finish(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        assert normalize is not None
        return (tf.cast(images, tf.float32) - normalize.mean) / normalize.std, labels

    ds = tf.data.TFRecordDataset([str(path) for path in records.shards], num_parallel_reads=tf.data.AUTOTUNE)
    ds = ds.shuffle(1000).map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size, drop_remainder=True)
    if recipe.dtype != "uint8":
        ds = ds.map(finish, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.prefetch(tf.data.AUTOTUNE)


def _crop(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
    short = tf.maximum([height, width] - tf.shape(image)[:2], 0)
    padded = tf.pad(image, [[0, short[0]], [0, short[1]], [0, 0]])
    return tf.image.random_crop(padded, (height, width, 3))


def _resized_crop(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros((1, 0, 4)),
        area_range=(0.08, 1.0),
        min_object_covered=0.0,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.reshape(tf.slice(image, begin, size), [size[0], size[1], 3])
    flipped = tf.image.random_flip_left_right(tf.image.resize(window, (height, width)))
    return tf.cast(flipped + 0.5, tf.uint8)


def _variations(best: Setting, records: int) -> list[Setting]:
    """The best setting again, with fewer and more threads, and with larger batches."""
    threads = sorted({max(1, best.threads // 2), 2 * best.threads} - {best.threads})
    batches = [size for size in (2 * best.batch_size, 4 * best.batch_size) if size <= records]
    more = [best._replace(threads=number) for number in threads]
    return more + [best._replace(batch_size=size) for size in batches]


def advise(found: Sequence[Candidate]) -> Candidate:
    """Of the best and its variations: the fewest threads that are as fast, at the batch size that was asked for."""
    best = found[0].setting
    asked = [one for one in found if one.setting.batch_size == best.batch_size]
    most = max(one.speed for one in asked)
    return min((one for one in asked if one.speed >= (1 - ALIKE) * most), key=lambda one: one.setting.threads)


def _sentence(found: Sequence[Candidate], others: Sequence[Candidate], advised: Candidate) -> str:
    s = advised.setting
    told = (
        f'Use engine="{s.engine}", device="{s.device}", dtype="{s.dtype}", num_threads={s.threads}, '
        f"batch_size={s.batch_size}: {advised.speed:,.0f} images/s, {_gain(found, advised)}"
    )
    if alike := [f"{one.setting.name} in {one.setting.dtype}" for one in _alike(found, advised)]:
        told += f"; within the noise of these rounds {' and '.join(alike)} {'are' if alike[1:] else 'is'} as fast"
    larger = [one for one in others if one.setting.batch_size > s.batch_size]
    widest = max(larger, key=lambda one: one.speed, default=advised)
    if widest.speed > (1 + WORTH_IT) * advised.speed:
        gain = widest.speed / advised.speed - 1
        told += f"; batches of {widest.setting.batch_size}, if the training allows them, give {gain:.0%} more"
    return told + ("; Preprocess(recipe) normalises in the model." if s.dtype == "uint8" else ".")


def _gain(found: Sequence[Candidate], advised: Candidate) -> str:
    """Over plain tf.data: like for like first, and over what people write where that is another dtype."""
    dtype, plain = advised.setting.dtype, {one.setting.dtype: one for one in found if one.setting.engine is None}
    times = {name: f"{advised.speed / one.speed:.1f}×" for name, one in plain.items()}
    others = "".join(f" ({gain} in {name})" for name, gain in times.items() if name != dtype)
    return f"{times[dtype]} {PLAIN} in {dtype}{others}"


def _alike(found: Sequence[Candidate], advised: Candidate) -> list[Candidate]:
    """Other engines, devices and dtypes whose rounds overlap with those of the best, measured in turn with it."""
    ours = [one for one in found if one.setting.engine]
    best = next(one for one in ours if one.setting[:3] == advised.setting[:3])
    slowest = min(speed.images_per_second for speed in best.speeds)
    fast = [max(speed.images_per_second for speed in one.speeds) >= (1 - ALIKE) * slowest for one in ours]
    return [one for one, as_fast in zip(ours, fast, strict=True) if as_fast and one is not best]


def text(found: Sequence[Candidate], others: Sequence[Candidate], advised: Candidate) -> str:
    """The machine, the table, the advice."""
    head = ("pipeline", "dtype", "threads", "batch", "images/s", "CPU ms/image", "first batch s")
    cells = [head, *map(_cells, found), *map(_cells, others)]
    table = columns(cells, right=range(2, len(head)))
    return f"Machine: {machine.one_line(machine.describe())}\n\n{table}\n\n{_sentence(found, others, advised)}"


def _cells(one: Candidate) -> tuple[str, ...]:
    s, threads = one.setting, str(one.setting.threads) if one.setting.engine else "auto"
    figures = (f"{one.speed:,.0f}", f"{one.median('cpu_ms_per_image'):.3f}", f"{one.median('first_batch_seconds'):.2f}")
    return (s.name, s.dtype, threads, str(s.batch_size), *figures)


def summary(found: Sequence[Candidate], others: Sequence[Candidate], advised: Candidate) -> dict[str, Any]:
    """Everything the text says, and each round, for `json.dumps`."""
    return {
        "machine": machine.describe(),
        "rows": [
            {**one.setting._asdict(), "rounds": [speed._asdict() for speed in one.speeds]} for one in (*found, *others)
        ],
        "use": advised.setting._asdict(),
        "advice": _sentence(found, others, advised),
    }
