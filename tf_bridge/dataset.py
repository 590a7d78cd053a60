"""The data set a user holds: an ordinary `tf.data.Dataset` that keeps Keras's contract."""

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from dali_pipe import plan as plan_lib
from dali_pipe import records as records_lib
from dali_pipe import tfds_source
from dali_pipe.device import DeviceName, available_cores
from dali_pipe.plan import Plan, Shuffle
from dali_pipe.recipe import Recipe
from dali_pipe.records import Records
from dali_pipe.scan import MAX_PIXELS, Schema
from tf_bridge import policy
from tf_bridge.choice import Choice, EngineName, choose
from tf_bridge.policy import OnError, Outcome
from tf_bridge.runner import Runner
from tf_bridge.shard import Shard
from tf_bridge.source import EpochCounter, Source
from tf_bridge.tfdata_engine import TFDataEngine

if TYPE_CHECKING:
    from tf_bridge.dali_engine import DALIEngine

log = logging.getLogger(__name__)

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class ImageDataset(tf.data.Dataset):
    """Batches `(images, labels)` of a view of records, a new exact epoch each time it is iterated.

    Images are `(B, H, W, 3)` in the recipe's dtype, labels `(B,)` int64. Order and augmentation follow from
    `(seed, epoch)` alone. The epoch moves on once an iterator has handed out its second batch, which is how Keras's
    spare iterators and a peek at one batch leave it alone; `set_epoch` sets it.

    Made by `from_tfds`, `from_tfrecords` and `from_records`.

    Attributes:
        records: the view it reads.
        recipe: what it does to each image.
        seed: of order and augmentation.
        batch_size: records a batch.
        engine: "dali" or "tfdata".
        device: "gpu" or "cpu".
        reason: why this engine and device, for people.
        num_threads: CPU threads of the engine.
        skipped: bad records that `on_error` left out, as `tf_bridge.verify.Finding`s.
        repaired: bad records whose image it replaced.
    """

    def __init__(
        self, source: Source, choice: Choice, num_threads: int, outcome: Outcome | None = None, *, gpu: int = 0
    ):
        self._source, self._choice, self._gpu = source, choice, gpu
        self.engine, self.device, self.reason = choice
        self.num_threads = num_threads
        self.records, self.recipe = source.plan.records, source.plan.recipe
        self.seed, self.batch_size = source.plan.seed, source.batch_size
        self._outcome = outcome or Outcome(self.records)
        self.skipped, self.repaired = self._outcome.skipped, self._outcome.repaired
        self._on_gpu = _gpu_engine(source, num_threads, gpu) if self.device == "gpu" else None
        if self._on_gpu is not None:
            self._batches = self._on_gpu.epoch(self.epoch)  # only `prefetch` and `with_options` may follow on a GPU
        else:
            self._batches = Runner(source, self._begin(num_threads), self.engine, self._spec).dataset()
            # Nothing in it is tuned, and the thread that would tune takes up to ten seconds to end with its iterator.
            options = tf.data.Options()
            options.autotune.enabled = False
            self._untuned = self._batches.with_options(options)
        super().__init__(self._batches._variant_tensor)

    def _begin(self, num_threads: int) -> Callable[[int], Iterator[Any]]:
        """What begins an epoch on the CPU."""
        if self.engine == "tfdata":
            return TFDataEngine(self._source, num_threads).batches
        from tf_bridge.dali_host import HostEngine  # where DALI may be missing

        return HostEngine(self._source, num_threads).batches

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    @property
    def _spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        size, recipe = self.batch_size if self._source.drop_remainder else None, self.recipe
        return (
            tf.TensorSpec((size, *recipe.output_shape), recipe.dtype),
            tf.TensorSpec((size, *recipe.label_shape), recipe.label_dtype),
        )

    @property
    def element_spec(self) -> Any:
        """`(images, labels)` as TensorSpecs; the batch dimension is None where the last batch may be partial."""
        return self._spec

    @property
    def _cardinality(self) -> int:
        return int(tf.data.INFINITE_CARDINALITY) if self._source.repeat else self._source.left

    def cardinality(self) -> tf.Tensor:
        """Batches an iterator gives, an int64 scalar; `tf.data.INFINITE_CARDINALITY` with `repeat=True`."""
        return tf.constant(self._cardinality, tf.int64)

    def __len__(self) -> int:
        """Batches of an epoch, with `repeat=True` too: `steps_per_epoch=len(ds)`."""
        return self._source.left

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator runs, counted from 0."""
        return self._source.counter.value

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator run this epoch."""
        if epoch < 0:
            raise ValueError(f"`epoch` must not be negative. Received: epoch={epoch!r}")
        self._source.counter.value = int(epoch)

    @property
    def identity(self) -> dict[str, Any]:
        """What its batches follow from, to tell whether a saved run had the same data; JSON can hold it."""
        return self._source.identity

    def rest(self, epoch: int, step: int) -> "ImageDataset":
        """What is left of an epoch from batch `step` on: the very batches that the whole epoch gives there.

        Its every iterator runs that rest again; this dataset's own epoch stays what it is. To go on with a run that
        stopped, let `fit(dataset.rest(e, step), initial_epoch=e, epochs=e + 1)` finish the epoch and `set_epoch(e + 1)`
        follow; `fit_resumable` does both.

        Args:
            epoch: counted from 0.
            step: batches of it that are left out, from 0 to `len(self) - 1`.

        Raises:
            ValueError: there is no such batch, or the epochs are one endless stream.
        """
        source = self._source
        if source.repeat:
            raise ValueError("`rest` needs epochs that end. Received: a data set with repeat=True")
        if epoch < 0 or not source.start <= step < source.steps:
            raise ValueError(
                f"`epoch` must not be negative, and `step` must be from {source.start} to {source.steps - 1}. "
                f"Received: epoch={epoch!r}, step={step!r}"
            )
        rest = source.rest(int(epoch), int(step))
        return ImageDataset(rest, self._choice, self.num_threads, self._outcome, gpu=self._gpu)

    def prefetch(self, buffer_size: Any, name: str | None = None) -> tf.data.Dataset:
        """As of any data set. On a GPU a peek at one batch counts as an epoch then, as more are taken ahead."""
        if self._on_gpu is None:
            return super().prefetch(buffer_size, name=name)
        return _FollowingGPU(self).prefetch(buffer_size, name=name)

    def with_options(self, options: tf.data.Options, name: str | None = None) -> tf.data.Dataset:
        """As of any data set."""
        if self._on_gpu is None:
            return super().with_options(options, name=name)
        return _FollowingGPU(self).with_options(options, name=name)

    def __iter__(self) -> Iterator[Any]:
        """An iterator over one epoch, or over all that follow with `repeat=True`."""
        return iter(self._next())

    def _next(self) -> tf.data.Dataset:
        """What an iterator made now runs."""
        self.records.check_unchanged()  # here, where it is a Python exception still
        if self._on_gpu is None:
            return self._untuned
        with tf.device("/cpu:0"):  # a strategy asks in the scope of a GPU; what belongs there says so
            return (self._on_gpu.endless if self._source.repeat else self._on_gpu.epoch)(self.epoch)

    def __repr__(self) -> str:
        shape = (self.batch_size, *self.recipe.output_shape)
        return (
            f"<ImageDataset: {len(self.records)} records, {len(self)} batches of {shape} {self.recipe.dtype}, "
            f"engine={self.engine!r}, device={self.device!r}, seed={self.seed}>"
        )


_Change = Callable[[tf.data.Dataset], tf.data.Dataset]


class _FollowingGPU(tf.data.Dataset):
    """What may follow a data set on a GPU, done to each of its epochs; in a graph it would follow one of them for ever.

    Args:
        images: the data set.
        change: what follows.
    """

    def __init__(self, images: ImageDataset, change: _Change = lambda batches: batches):
        self._images, self._change = images, change
        self._once = change(images._batches)
        super().__init__(self._once._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._once]  # which has the options

    @property
    def element_spec(self) -> Any:
        return self._images.element_spec

    def cardinality(self) -> tf.Tensor:
        return self._images.cardinality()

    def __len__(self) -> int:
        return len(self._images)

    def prefetch(self, buffer_size: Any, name: str | None = None) -> tf.data.Dataset:
        return self._and(lambda batches: batches.prefetch(buffer_size, name=name))

    def with_options(self, options: tf.data.Options, name: str | None = None) -> tf.data.Dataset:
        return self._and(lambda batches: batches.with_options(options, name=name))

    def _and(self, change: _Change) -> "_FollowingGPU":
        return _FollowingGPU(self._images, lambda batches: change(self._change(batches)))

    def __iter__(self) -> Iterator[Any]:
        batches = self._images._next()
        with tf.device(batches._variant_tensor.device):  # that GPU, which need not be the first
            return iter(self._change(batches))


def _gpu_engine(source: Source, num_threads: int, gpu: int) -> "DALIEngine":
    from tf_bridge.dali_engine import DALIEngine  # where DALI may be missing

    return DALIEngine(source, "gpu", num_threads, gpu)


def from_records(
    records: Records,
    *,
    recipe: Recipe,
    batch_size: int,
    shuffle: Shuffle | None = None,
    seed: int | None = None,
    drop_remainder: bool | None = None,
    repeat: bool = False,
    engine: EngineName = "auto",
    device: DeviceName = "auto",
    num_threads: int | None = None,
    shard: tuple[int, int] | None = None,
    on_error: OnError = "raise",
    max_bad: float = 0.01,
) -> ImageDataset:
    """A dataset of the records of a view.

    Args:
        records: the view; `dali_pipe.from_files(...)`, or the `records` of another dataset, split, filtered, ….
        recipe: what to do to each image.
        batch_size: records a batch.
        shuffle: a new order each epoch. True is an exact permutation up to 65,536 records, and permutes blocks of
            neighbours beyond; "exact" is a permutation at any size. None: True if the recipe is random.
        seed: of order and augmentation; None is fresh entropy, which is logged.
        drop_remainder: leave out the last, partial batch of each epoch. None: True if the recipe is random.
        repeat: one endless stream of epochs, for `fit(steps_per_epoch=len(ds))`. On a GPU the stream's order comes
            round after as many epochs as fit 65,536 records (one at least), each time with new augmentation.
        engine: "dali" or "tfdata"; "auto" takes DALI on a GPU, and on the CPU the faster one for the recipe.
        device: "gpu", "cpu"; "auto" takes a GPU that both DALI and TensorFlow can use.
        num_threads: CPU threads of the engine; None is one for each core this process may use.
        shard: `(rank, replicas)`: every `replicas`-th record of the epoch's order, from the `rank`-th, in batches of
            `batch_size`. Of a shard that `tb.distribute` hands to `make`, `batch_size` is the batch of all replicas.
        on_error: what becomes of bad records. "raise": the iterator raises when it meets one. "skip" and "repair" look
            at every record before anything is built, once, and keep what they find until a shard changes: records that
            some decoder cannot read are left out, or replaced by a PNG of the same pixels where another decoder reads
            them. Order and draws of the others stay, and every engine reads the same records.
        max_bad: most that may be left out, as a fraction of the records.

    Raises:
        ValueError: an argument is out of range, or more than `max_bad` of the records is bad; names it.
        DeviceUnavailableError: a GPU was asked for and there is none.
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"`recipe` must be a Recipe such as dali_pipe.crop_train(224). Received: {recipe!r}")
    for name, value in (("batch_size", batch_size), ("num_threads", num_threads)):
        if value is not None and (not isinstance(value, int) or value <= 0):
            raise ValueError(f"`{name}` must be a positive int. Received: {name}={value!r}")
    rank, replicas = shard or (0, 1)
    if seed is None and isinstance(shard, Shard):
        seed = shard.seed
    plan = Plan(records, recipe, _seed(seed), recipe.random if shuffle is None else shuffle, rank, replicas)
    choice = choose(engine, device, recipe)
    threads = num_threads or available_cores()
    outcome = policy.apply(records, on_error, max_bad, engine=choice.engine, exif=recipe.exif, num_threads=threads)
    plan = replace(plan, records=outcome.records)
    drop_remainder = recipe.random if drop_remainder is None else drop_remainder
    if isinstance(shard, Shard):
        batch_size = shard.share(batch_size, len(plan.records), drop_remainder)
    source = Source(plan, batch_size, drop_remainder, repeat, EpochCounter())
    _check_size(source)
    _check_labels(plan)
    if rank == 0:
        _tell_order(plan, batch_size)
    return ImageDataset(source, choice, threads, outcome, gpu=shard.gpu if isinstance(shard, Shard) else 0)


def _seed(seed: int | None) -> int:
    if seed is None:
        seed = secrets.randbits(32)
        log.info("Seed: %d (pass seed=%d to have the same epochs again).", seed, seed)
    return seed


def _tell_order(plan: Plan, batch_size: int) -> None:
    if advice := plan_lib.mixing(plan, batch_size):
        log.warning(advice)
    elif order := plan_lib.blocks(plan, batch_size):
        log.info(order)


def _check_size(source: Source) -> None:
    count, batch_size = len(source.plan), source.batch_size
    if 0 < len(source.plan.records) < source.plan.replicas:
        raise ValueError(
            f"Each replica must have a record. Received: {len(source.plan.records)} records, {source.plan.replicas} "
            "replicas"
        )
    if not source.steps:
        raise ValueError(
            f"`batch_size` must not exceed the number of records with drop_remainder=True. "
            f"Received: batch_size={batch_size}, {count} records"
            if count
            else "There is no record to read: the split, slice or shard is empty."
        )


def _check_labels(plan: Plan) -> None:
    one_hot, labels = plan.recipe.label, plan.records.labels
    if one_hot is None:
        return
    wrong = np.flatnonzero((labels < 0) | (labels >= one_hot.classes))
    if wrong.size:
        raise ValueError(
            f"`classes` of OneHot must exceed every label. Received: classes={one_hot.classes}, but "
            f"{plan.records.where(wrong[0])}, has label {labels[wrong[0]]}"
        )


def from_tfds(
    data: str | os.PathLike[str],
    *,
    split: str,
    recipe: Recipe,
    batch_size: int,
    data_dir: str | os.PathLike[str] | None = None,
    image_key: str | None = None,
    label_key: str | None = None,
    label_offset: int = 0,
    max_pixels: int = MAX_PIXELS,
    **options: Any,
) -> ImageDataset:
    """A dataset from a prepared TFDS data set.

    Args:
        data: a TFDS name such as "imagenette/320px", or the folder that holds `dataset_info.json`.
        split: as TFDS spells it: "train", "train[:80%]", "train[100:200]", "train+validation".
        recipe: what to do to each image.
        batch_size: records a batch.
        data_dir: where TFDS keeps data sets; `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.
        image_key: the feature with the image; None takes the supervised pair's, or the only image.
        label_key: the feature with the label; None takes the supervised pair's, or the only class label.
        label_offset: what the files call the first class.
        max_pixels: most that an image's header may claim; a record beyond is bad.
        **options: as `from_records`.

    Raises:
        DatasetNotFoundError: no such data set has been prepared.
        RecordError: a shard or record is unusable; names it.
        ValueError: an argument is out of range; names it.
    """
    dataset = tfds_source.read_metadata(tfds_source.find(data, data_dir))
    schema = dataset.schema(image_key, label_key, label_offset, max_pixels)
    records = tfds_source.open_split(dataset, split, schema, policy.on_fault(options.get("on_error", "raise")))
    return from_records(records, recipe=recipe, batch_size=batch_size, **options)


def from_tfrecords(
    files: Files,
    *,
    recipe: Recipe,
    batch_size: int,
    image_key: str = "image",
    label_key: str | None = "label",
    label_offset: int = 0,
    max_pixels: int = MAX_PIXELS,
    **options: Any,
) -> ImageDataset:
    """A dataset from plain TFRecord files of `tf.train.Example`s.

    Args:
        files: a path, a glob pattern (its matches in sorted order), or a sequence of these.
        recipe: what to do to each image.
        batch_size: records a batch.
        image_key: the bytes feature with the encoded image; ImageNet's is "image/encoded".
        label_key: the int64 feature with the label; ImageNet's is "image/class/label". None: all labels are 0.
        label_offset: what the files call the first class; it is subtracted. ImageNet's labels start at 1.
        max_pixels: most that an image's header may claim; a record beyond is bad.
        **options: as `from_records`.

    Raises:
        FileNotFoundError: nothing matches `files`.
        RecordError: a shard or record is unusable; names it.
        ValueError: an argument is out of range; names it.
    """
    schema = Schema(image_key=image_key, label_key=label_key, label_offset=label_offset, max_pixels=max_pixels)
    records = records_lib.from_files(files, schema, policy.on_fault(options.get("on_error", "raise")))
    return from_records(records, recipe=recipe, batch_size=batch_size, **options)
