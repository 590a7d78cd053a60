"""The product's DALI graph driven from Python, without TensorFlow, with one decoder or another in it."""

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

from nvidia.dali import Pipeline, fn, types

import dali_pipe as dp
from benchmarks.gpu_cases import Check, Setting, recipes
from dali_pipe import index_files, pipeline
from dali_pipe.device import available_cores
from dali_pipe.pipeline import INPUT
from tf_bridge.source import EpochCounter, Source


def graph(feed: Any, recipe: dp.Recipe, check: Check, undersized: frozenset[int]) -> tuple[Any, Any]:
    """The product's graph, with the case's decoder; call it inside a Pipeline's scope."""
    if check.device == "cpu" or (check.decoder == "whole" and check.hw_decoder_load is None):
        return pipeline.graph(feed, recipe, check.device, undersized)
    with mock.patch.object(pipeline, "_decode", _decoder(check)):
        if check.decoder not in ("region", "alone"):
            return pipeline.graph(feed, recipe, "gpu", undersized)
        encoded, ticket = feed()
        if check.decoder == "alone":
            return pipeline._decode(encoded, recipe, "gpu"), pipeline._label(ticket, recipe).gpu()
        window = pipeline.Lanes(ticket, 2, "gpu")
        image = pipeline._finish(pipeline._decode(encoded, recipe, "gpu", window), recipe)
        return image, pipeline._label(ticket, recipe).gpu()


def _decoder(check: Check) -> Any:
    settings: dict[str, Any] = {"output_type": types.RGB, "adjust_orientation": False}
    on_gpu: dict[str, Any] = {"device": "mixed", "jpeg_fancy_upsampling": True}
    if check.hw_decoder_load is not None:
        on_gpu["hw_decoder_load"] = check.hw_decoder_load

    def decode(encoded: Any, recipe: dp.Recipe, device: str, region: Any = None) -> Any:
        if check.decoder == "on the CPU":
            return fn.decoders.image(encoded, device="cpu", **settings).gpu()
        if check.decoder == "region":
            window: dict[str, Any] = {"start": region.ints(0, 2), "shape": region.ints(2, 2), "axes": [0, 1]}
            return fn.decoders.image_slice(encoded, **on_gpu, **window, **settings)
        return fn.decoders.image(encoded, **on_gpu, **settings)

    return decode


class Epochs:
    """DALI alone: epochs of one recipe, their batches on the device.

    Args:
        check: recipe, device and decoder.
        setting: records and batch.
    """

    def __init__(self, check: Check, setting: Setting):
        records = dp.from_files(setting.data)
        recipe = recipes(setting.size)[check.recipe].with_dtype(check.dtype)
        self.batch_size = min(setting.batch_size, len(records))
        source = Source(dp.Plan(records, recipe), self.batch_size, True, False, EpochCounter())
        order, tickets = source.epoch(0)
        self._tickets = source.pad(tickets)
        self._index = index_files.IndexFiles(records)  # its files go with it
        feed = pipeline.native_feed(*self._index.write(order), records.schema.image_key, False)
        threads = check.threads or min(16, available_cores())
        number = 0 if check.device == "gpu" else None
        self._pipe = Pipeline(batch_size=self.batch_size, num_threads=threads, device_id=number)
        with self._pipe:
            self._pipe.set_outputs(*graph(feed, recipe, check, recipe.undersized(records.sizes(recipe.exif))))
        self._pipe.build()

    def __iter__(self) -> Iterator[Any]:
        """Batches `(images, labels)` without end, each good until the next; DALI works at those that follow."""
        tickets = itertools.cycle(self._tickets)
        for _ in range(self._pipe.input_feed_count(INPUT)):
            self._pipe.feed_input(INPUT, list(next(tickets)))
        while True:
            self._pipe.schedule_run()
            yield self._pipe.share_outputs()
            self._pipe.release_outputs()
            self._pipe.feed_input(INPUT, list(next(tickets)))

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._tickets)
