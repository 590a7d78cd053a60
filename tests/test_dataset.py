"""The contract of a dataset, the same on every engine."""

import functools
import gzip
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import dali_pipe as dp
import tf_bridge as tb
from tests import support
from tf_bridge.choice import EngineName

PLAIN = dp.Recipe((dp.RandomCrop(32), dp.RandomFlip()), "uint8")
CENTER = dp.Recipe((dp.CenterCrop(32),), "uint8")


def labels(dataset: Any) -> list[list[int]]:
    return [batch.numpy().tolist() for _, batch in dataset]


def flat(dataset: Any) -> list[int]:
    return [label for batch in labels(dataset) for label in batch]


def epoch(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    images, numbers = zip(*[(x.numpy(), y.numpy()) for x, y in dataset], strict=True)
    return np.concatenate(images), np.concatenate(numbers)


def make(photographs: list[Path], recipe: dp.Recipe = PLAIN, **options: Any) -> tb.ImageDataset:
    options = {"batch_size": 16, "seed": 0, **options}
    return tb.from_tfrecords(photographs, recipe=recipe, **options)


class TestOneEpoch:
    def test_evaluation_gives_every_record_once_in_file_order_with_a_partial_last_batch(
        self, photographs: list[Path], engine: EngineName
    ) -> None:
        ds = make(photographs, CENTER, engine=engine)
        assert [len(b) for b in labels(ds)] == [16, 16, 16, 2]
        assert flat(ds) == list(range(50))

    def test_training_gives_full_batches_and_drops_another_tail_each_epoch(
        self, photographs: list[Path], engine: EngineName
    ) -> None:
        ds = make(photographs, engine=engine)
        epochs = [labels(ds) for _ in range(3)]
        assert [[len(b) for b in e] for e in epochs] == [[16, 16, 16]] * 3
        left_out = [set(range(50)) - {n for b in e for n in b} for e in epochs]
        assert len({frozenset(s) for s in left_out}) == 3

    @pytest.mark.parametrize(("drop", "spec"), [(True, (16, 32, 32, 3)), (False, (None, 32, 32, 3))])
    def test_cardinality_and_element_spec(
        self, photographs: list[Path], engine: EngineName, drop: bool, spec: tuple[int | None, ...]
    ) -> None:
        ds = make(photographs, engine=engine, drop_remainder=drop)
        assert int(ds.cardinality()) == len(ds) == len(labels(ds)) == (3 if drop else 4)
        assert ds.element_spec == (tf.TensorSpec(spec, tf.uint8), tf.TensorSpec(spec[:1], tf.int64))

    @pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
    def test_dtype_is_the_recipe_s(self, photographs: list[Path], engine: EngineName, dtype: Any) -> None:
        images, numbers = next(iter(make(photographs, dp.crop_train(32, dtype), engine=engine)))
        assert images.dtype.name == dtype
        assert numbers.dtype == tf.int64

    def test_fewer_records_than_a_batch(self, photographs: list[Path], engine: EngineName) -> None:
        ds = make(photographs, CENTER, engine=engine, batch_size=64)
        assert labels(ds) == [list(range(50))]
        assert labels(ds) == [list(range(50))]

    def test_a_view_of_some_records(self, photographs: list[Path], engine: EngineName) -> None:
        records = dp.from_files([str(p) for p in photographs])
        view = records.exclude([3, 20]).skip(2).take(30)
        ds = tb.from_records(view, recipe=CENTER, batch_size=7, engine=engine)
        assert flat(ds) == [n for n in range(34) if n not in (0, 1, 3, 20)]

    def test_an_image_smaller_than_the_crop_has_the_crop_s_shape(self, tmp_path: Path, engine: EngineName) -> None:
        sizes = [(24, 32), (70, 30), (64, 64), (100, 90)]
        shards = support.write_shards(tmp_path, [support.photograph(k, *s) for k, s in enumerate(sizes)], shards=1)
        images, _ = epoch(tb.from_tfrecords(shards, recipe=PLAIN, batch_size=3, drop_remainder=False, seed=1))
        assert images.shape == (4, 32, 32, 3)
        for recipe in (dp.crop_train(64, "uint8"), dp.crop_eval(64, "uint8")):
            ds = tb.from_tfrecords(shards, recipe=recipe, batch_size=4, engine=engine)
            assert epoch(ds)[0].shape == (4, 64, 64, 3)

    def test_windows_are_where_geometry_says(self, tmp_path: Path, engine: EngineName) -> None:
        images = [support.jpeg(support.coordinates(60 + k, 80 + 2 * k)) for k in range(12)]
        shards = support.write_shards(tmp_path, images, shards=2)
        recipe = dp.Recipe((dp.RandomCrop((24, 40)),), "uint8")
        ds = tb.from_tfrecords(shards, recipe=recipe, batch_size=5, seed=3, engine=engine, drop_remainder=False)
        plan = dp.Plan(ds.records, recipe, seed=3)
        windows = {int(t[1]): t[2:6] for t in plan.tickets(0, plan.order(0))}
        for image, label in zip(*epoch(ds), strict=True):
            y, x, height, width = windows[int(label)]
            corner = image[0, 0].astype(int)
            assert image.shape == (height, width, 3)
            assert abs(corner[0] - x) <= 2 and abs(corner[1] - y) <= 2


class TestEpochs:
    def test_each_iteration_is_a_new_order(self, photographs: list[Path], engine: EngineName) -> None:
        ds = make(photographs, engine=engine, drop_remainder=False)
        orders = [flat(ds) for _ in range(3)]
        assert all(sorted(order) == list(range(50)) for order in orders)
        assert len({tuple(order) for order in orders}) == 3
        assert ds.epoch == 3

    def test_the_seed_decides(self, photographs: list[Path], engine: EngineName) -> None:
        first, again, other = (epoch(make(photographs, engine=engine, seed=s))[0] for s in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_set_epoch_repeats_order_and_augmentation(self, photographs: list[Path], engine: EngineName) -> None:
        ds = make(photographs, engine=engine)
        epochs = [epoch(ds) for _ in range(3)]
        ds.set_epoch(1)
        again = epoch(ds)
        assert np.array_equal(again[0], epochs[1][0]) and np.array_equal(again[1], epochs[1][1])
        assert ds.epoch == 2

    def test_a_peek_uses_no_epoch_up(self, photographs: list[Path], engine: EngineName) -> None:
        ds = make(photographs, engine=engine)
        peeked = next(iter(ds))[1].numpy().tolist()
        assert ds.epoch == 0
        assert labels(ds)[0] == peeked

    def test_an_iterator_from_before_set_epoch_has_no_say(self, photographs: list[Path], engine: EngineName) -> None:
        ds = make(photographs, engine=engine)
        old = iter(ds)
        next(old)
        ds.set_epoch(7)
        next(old)
        assert ds.epoch == 7

    def test_breaking_off_counts_and_the_next_epoch_is_whole(self, photographs: list[Path], engine: EngineName) -> None:
        ds = make(photographs, engine=engine, drop_remainder=False)
        for step, _ in enumerate(ds):
            if step == 1:
                break
        assert ds.epoch == 1
        assert sorted(flat(ds)) == list(range(50))

    def test_what_follows_in_tf_data_gets_new_epochs_too(self, photographs: list[Path], engine: EngineName) -> None:
        ds = make(photographs, engine=engine, drop_remainder=False)
        expected = [flat(ds) for _ in range(3)]
        ds.set_epoch(0)
        derived = ds.map(lambda images, numbers: (images, numbers)).prefetch(1)
        assert int(derived.cardinality()) == 4
        assert [flat(derived) for _ in range(3)] == expected

    def test_order_is_independent_of_batch_size_threads_and_shards(
        self, photographs: list[Path], tmp_path: Path, engine: EngineName
    ) -> None:
        payloads = [
            tf.train.Example.FromString(r.numpy()) for r in tf.data.TFRecordDataset([str(p) for p in photographs])
        ]
        images = [p.features.feature["image"].bytes_list.value[0] for p in payloads]
        other = support.write_shards(tmp_path, images, shards=7)
        one = epoch(make(photographs, engine=engine, drop_remainder=False))
        two = epoch(make(other, engine=engine, drop_remainder=False, batch_size=11, num_threads=1))
        assert np.array_equal(one[0], two[0]) and np.array_equal(one[1], two[1])

    def test_shards_of_replicas_are_strides_of_one_order(self, photographs: list[Path], engine: EngineName) -> None:
        whole = flat(make(photographs, engine=engine, drop_remainder=False))
        for rank in range(3):
            part = make(photographs, engine=engine, drop_remainder=False, shard=(rank, 3))
            assert flat(part) == whole[rank::3]


class TestRepeat:
    def test_an_endless_stream_of_whole_epochs(self, photographs: list[Path], engine: EngineName) -> None:
        ds = make(photographs, engine=engine, repeat=True, drop_remainder=False)
        assert int(ds.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert len(ds) == 4
        once = make(photographs, engine=engine, drop_remainder=False)
        expected = [batch for _ in range(3) for batch in labels(once)]
        stream = iter(ds)
        assert [next(stream)[1].numpy().tolist() for _ in range(12)] == expected


class TestShuffle:
    @pytest.mark.parametrize("shuffle", [True, "exact"])
    def test_beyond_the_segments_every_record_still_comes_once(
        self, photographs: list[Path], engine: EngineName, shuffle: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tf_bridge.dataset.Plan", functools.partial(dp.Plan, max_segments=12))
        ds = make(photographs, engine=engine, shuffle=shuffle, drop_remainder=False)
        order = flat(ds)
        assert sorted(order) == list(range(50))
        neighbours = sum(b == a + 1 for a, b in itertools.pairwise(order))
        assert (neighbours > 25) == (shuffle is True)

    def test_class_sorted_blocks_are_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tf_bridge.dataset.Plan", functools.partial(dp.Plan, max_segments=10))
        images = [support.photograph(k % 5, 40, 40) for k in range(200)]
        shards = support.write_shards(tmp_path, images, [k // 10 for k in range(200)])
        with caplog.at_level(logging.WARNING):
            make(shards)
        assert 'Use shuffle="exact"' in caplog.text

    def test_an_order_of_blocks_is_told_once(
        self, photographs: list[Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Three shards of 17, 17 and 16 records in blocks of at most 5."""
        with caplog.at_level(logging.INFO):
            make(photographs)
            monkeypatch.setattr("tf_bridge.dataset.Plan", functools.partial(dp.Plan, max_segments=12))
            make(photographs, shuffle="exact")
            make(photographs, shuffle=False)
            assert "blocks" not in caplog.text
            labels(make(photographs))
        assert [record.getMessage() for record in caplog.records if "blocks" in record.getMessage()] == [
            "shuffle=True permutes 12 blocks of at most 5 neighbouring records: a batch of 16 mixes about 4 of them. "
            'shuffle="exact" permutes single records.'
        ]


class TestBrokenShards:
    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (
                lambda data: b"version https://git-lfs.github.com/spec/v1\n",
                "this is a Git LFS pointer, .*`git lfs pull`",
            ),
            (gzip.compress, "the shard is gzipped, and a compressed shard has no seekable records. Run `gunzip`"),
            (lambda data: b"", "the shard is empty. Copy or write the shard again"),
            (lambda data: data[:-9], "the shard is cut short: .* Copy or write the shard again"),
        ],
        ids=["Git LFS", "gzipped", "empty", "cut short"],
    )
    def test_are_named_with_the_way_out_before_anything_is_built(
        self, photographs: list[Path], tmp_path: Path, spoil: Callable[[bytes], bytes], message: str
    ) -> None:
        (broken := tmp_path / "broken.tfrecord").write_bytes(spoil(photographs[1].read_bytes()))
        with pytest.raises(dp.RecordError, match=f"{broken}.*: {message}"):
            make([photographs[0], broken])


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_size": 0}, "`batch_size` must be a positive int. Received: batch_size=0"),
            ({"batch_size": 51}, "`batch_size` must not exceed"),
            ({"seed": -1}, "`seed` must be an int from 0"),
            ({"shuffle": "yes"}, "`shuffle` must be True, False or"),
            ({"engine": "torch"}, "`engine` must be"),
            ({"device": "tpu"}, "`device` must be"),
            ({"engine": "tfdata", "device": "gpu"}, 'needs engine="dali"'),
            ({"shard": (3, 3)}, "`shard` must be"),
            ({"shard": (60, 61), "batch_size": 1}, "Each replica must have a record"),
            ({"num_threads": 0}, "`num_threads` must be a positive int"),
            ({"label_offset": 5}, "`label_offset` must be"),
        ],
    )
    def test_out_of_range_is_named(self, photographs: list[Path], options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message.replace("(", r"\(")):
            make(photographs, **options)

    def test_a_gpu_that_is_not_there(self, photographs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dali_pipe.device.dali_gpu_count", lambda: 0)
        with pytest.raises(dp.DeviceUnavailableError, match=r'`device="gpu"` needs a GPU .* DALI'):
            make(photographs, device="gpu")

    def test_recipe_must_be_one(self, photographs: list[Path]) -> None:
        with pytest.raises(TypeError, match="`recipe` must be a Recipe"):
            make(photographs, recipe=224)  # type: ignore[arg-type]

    def test_fresh_seed_is_logged(self, photographs: list[Path], caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            ds = make(photographs, seed=None)
        assert f"seed={ds.seed}" in caplog.text

    def test_engine_device_and_reason_are_told(self, photographs: list[Path]) -> None:
        ds = make(photographs, device="cpu")
        assert (ds.engine, ds.device) == ("dali", "cpu")
        assert ds.reason
        assert "engine='dali'" in repr(ds)


class TestTFDS:
    @pytest.mark.parametrize("split", ["train[:80%]", "train[100:200]", "train+validation"])
    def test_labels_are_tfds_s_in_its_order(self, tfds_folder: Path, engine: EngineName, split: str) -> None:
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(tfds_folder)
        config = tfds.ReadConfig(interleave_cycle_length=1)
        theirs = [int(e["label"]) for e in builder.as_dataset(split=split, read_config=config)]
        ds = tb.from_tfds(tfds_folder, split=split, recipe=CENTER, batch_size=16, engine=engine)
        assert flat(ds) == theirs

    def test_by_name(self, tfds_folder: Path) -> None:
        ds = tb.from_tfds(
            "tiny_photos", data_dir=tfds_folder.parent.parent, split="validation", recipe=CENTER, batch_size=8
        )
        assert len(ds.records) == 37
