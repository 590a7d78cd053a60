"""A DALI pipeline as a tf.data dataset. Every guard against what the plugin does to a process lives here.

The plugin aborts the process when a pipeline cannot be built, so each is built in Python first; when the declared
outputs are fewer than the pipeline's, so they are derived from the same recipe; and when TensorFlow tears down a
multi-device iterator over it with default optimisations off, so they are turned on.
"""

import logging

import numpy as np
import nvidia.dali.plugin.tf as dali_tf
import tensorflow as tf
from numpy.typing import NDArray

from dali_pipe import pipeline, reader
from dali_pipe.geometry import Ints
from dali_pipe.index_files import IndexFiles
from dali_pipe.pipeline import INPUT, Kind
from tf_bridge.choice import cuda_ordinal
from tf_bridge.python_calls import graph, guarded, telling
from tf_bridge.source import Source

log = logging.getLogger(__name__)

_ROOM = 1 << 30  # bytes of a batch as it is fed, above which somebody should know
PREFETCH = 2  # batches the plugin keeps ahead; it asks for as many when an iterator is made
# Runs of records in the index of an endless stream: bounds the files the reader opens, and the graph's size.
MAX_REPEATED_RUNS = 65_536


class DALIEngine:
    """Runs one source's epochs.

    Args:
        source: what the epochs are.
        device: "gpu", or "cpu" to try the same here; data sets run DALI on the CPU another way (`dali_host`).
        num_threads: DALI's own, on the CPU.
        gpu: which of TensorFlow's logical GPUs.
    """

    def __init__(self, source: Source, device: Kind, num_threads: int, gpu: int = 0):
        self._source, self._device, self._threads = source, device, num_threads
        self._placement = f"/gpu:{gpu}" if device == "gpu" else "/cpu:0"
        self._device_id = cuda_ordinal(gpu) if device == "gpu" else None
        self._plan = source.plan
        self._index = IndexFiles(self._plan.records, self._plan.replicas)
        if self._is_fed:
            self._tell_room()

    def epoch(self, epoch: int) -> tf.data.Dataset:
        """One epoch, from the source's start on."""
        source = self._source
        if self._is_fed:
            return self._dataset(pipeline.bytes_feed(source.lanes), self._rows(tf.constant(epoch, tf.int64)))
        order, tickets = source.epoch(epoch)
        # The tickets are cut from the whole epoch's, as MixUp's follow from where its batches begin.
        batches = tf.data.Dataset.from_tensor_slices(source.pad(tickets)[source.start :])
        order = order[source.start * source.batch_size :]
        return self._read([order], self._counted(batches, tf.constant(epoch, tf.int64)))

    def endless(self, first: int) -> tf.data.Dataset:
        """Epoch `first` and all that follow, read by one pipeline.

        The index holds as many epochs as fit `MAX_REPEATED_RUNS`; after those the order comes round again, with new
        draws. An order that is fed never does.
        """
        source = self._source
        numbers = tf.data.Dataset.counter(tf.constant(first, tf.int64), tf.constant(1, tf.int64))
        if self._is_fed:
            return self._dataset(pipeline.bytes_feed(source.lanes), numbers.flat_map(graph(self._rows)))
        orders = [source.order(epoch) for epoch in range(first, first + self.held_epochs)]

        def tickets(epoch: int) -> NDArray[np.int64]:
            return source.pad(source.tickets(int(epoch), orders[(int(epoch) - first) % len(orders)]))

        def batches(epoch: tf.Tensor) -> tf.data.Dataset:
            rows = tf.numpy_function(guarded(tickets), [epoch], tf.int64, stateful=False)
            rows.set_shape([source.steps, source.batch_size, source.lanes])
            return self._counted(tf.data.Dataset.from_tensor_slices(rows), epoch)

        return self._read(orders, numbers.flat_map(graph(batches)))

    @property
    def held_epochs(self) -> int:
        """Epochs after which the order of an endless stream comes round."""
        if not self._plan.shuffle:
            return 1
        runs = len(self._plan.segments or self._plan)
        return max(1, MAX_REPEATED_RUNS // runs)

    @property
    def _is_fed(self) -> bool:
        """Whether Python reads the images: for a permutation of more records than the reader can have files for."""
        return self._plan.shuffle == "exact" and len(self._plan) > self._plan.max_segments

    def _tell_room(self) -> None:
        most = self._source.batch_size * int(self._plan.records.table["image_length"].max())
        if most > _ROOM:
            log.warning(
                'shuffle="exact" on a GPU gives each image the room of the largest of its batch: up to %.1f GB a batch '
                "here. Leave the largest records out, take smaller batches, or shuffle=True, which reads otherwise.",
                most / 1e9,
            )

    def _rows(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """What `pipeline.bytes_feed` takes of an epoch, batch by batch."""

        def row(step: tf.Tensor) -> tf.Tensor:
            rows = tf.numpy_function(guarded(self._batch_rows), [epoch, step], tf.uint8, stateful=False)
            rows.set_shape([None, None])
            return rows

        steps = tf.data.Dataset.range(self._source.start, self._source.steps)
        return self._counted(steps.map(graph(row), num_parallel_calls=2).prefetch(2), epoch)

    def _batch_rows(self, epoch: int, step: int) -> NDArray[np.uint8]:
        """A batch's rows `(b, widest)`: length of the image, ticket, image, and zeros up to the batch's widest."""
        places, tickets = self._source.batch(int(epoch), int(step))
        images = reader.read_images(self._plan.records, places)
        lengths = [len(image) for image in images]
        head = np.column_stack([lengths, tickets]).view(np.uint8)
        rows = np.zeros((len(images), head.shape[1] + max(lengths)), np.uint8)
        rows[:, : head.shape[1]] = head
        for row, image in zip(rows, images, strict=True):
            row[head.shape[1] :][: len(image)] = image
        return rows

    def _counted(self, batches: tf.data.Dataset, epoch: tf.Tensor) -> tf.data.Dataset:
        """The same batches for the plugin; they tell the counter when the second one is handed out.

        Nothing may follow a dataset on the GPU, so what goes in is counted: the plugin asks for `PREFETCH` batches when
        an iterator is made, and for one more each time it hands one out. (In an epoch of three batches or fewer, the
        last of them is asked for sooner.)
        """
        at = min(PREFETCH + 1, self._source.left - 1)

        def pass_on(step: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            (rows,) = telling([rows], step == at, self._source.counter.begun, epoch)
            return rows

        return batches.enumerate().map(graph(pass_on))

    def _read(self, orders: list[Ints], tickets: tf.data.Dataset) -> tf.data.Dataset:
        """DALI's reader along epochs, each filled up to full batches by repeating its last record."""
        filled = [np.pad(order, (0, -len(order) % self._source.batch_size), "edge") for order in orders]
        shards, index = self._index.write(np.concatenate(filled))
        padded = len(filled[0]) != len(orders[0])
        feed = pipeline.native_feed(shards, index, self._plan.records.schema.image_key, padded)
        return self._dataset(feed, tickets)

    def _dataset(self, feed: pipeline.Feed, batches: tf.data.Dataset) -> tf.data.Dataset:
        """A DALIDataset over a pipeline that is known to build."""
        source, recipe = self._source, self._plan.recipe
        pipe = pipeline.build(
            feed,
            recipe,
            batch_size=source.batch_size,
            num_threads=self._threads,
            device=self._device,
            device_id=self._device_id or 0,
            undersized=source.undersized,
        )
        size = source.batch_size if source.drop_remainder else None
        if self._device == "gpu":
            batches = batches.apply(tf.data.experimental.copy_to_device(self._placement))
        with tf.device(self._placement):
            wrapped = dali_tf.experimental.DALIDatasetWithInputs(
                pipeline=pipe,
                input_datasets={INPUT: dali_tf.experimental.Input(batches, batch=True)},
                batch_size=source.batch_size,  # these three silently replace the pipeline's own
                num_threads=self._threads,
                device_id=self._device_id,
                prefetch_queue_depth=PREFETCH,
                output_shapes=((size, *recipe.output_shape), (size, *recipe.label_shape)),
                output_dtypes=(tf.as_dtype(recipe.dtype), tf.as_dtype(recipe.label_dtype)),
            )
            # The plugin wraps its dataset in options that turn the default optimisations off, and TensorFlow logs a
            # warning for each option that is changed back: take what was wrapped.
            (dataset,) = wrapped._inputs()
            options = tf.data.Options()
            options.experimental_optimization.apply_default_optimizations = True
            options.experimental_optimization.inject_prefetch = False  # what goes in is counted
            options.autotune.enabled = False
            return dataset.with_options(options)
