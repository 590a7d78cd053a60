"""A data set inside Keras: `fit`, `evaluate`, `predict`, callbacks, saved models."""

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import dali_pipe as dp
import tf_bridge as tb
from tf_bridge.choice import EngineName

TRAIN, EVALUATE = dp.crop_train(32, "uint8"), dp.crop_eval(32, "uint8")


@pytest.fixture
def model() -> keras.Model:
    """As small as can be: to compile a ResNet takes longer than all else here."""
    keras.utils.set_random_seed(0)
    layers = [tb.Preprocess(TRAIN), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((32, 32, 3), dtype="uint8"), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def make(folder: Path, recipe: dp.Recipe, engine: EngineName, split: str = "train", **options: Any) -> tb.ImageDataset:
    return tb.from_tfds(folder, split=split, recipe=recipe, engine=engine, **{"batch_size": 16, "seed": 0, **options})


class Seen(keras.callbacks.Callback):
    """Which epoch of the data each epoch of the training ran."""

    def __init__(self, dataset: tb.ImageDataset):
        super().__init__()
        self.dataset, self.epochs, self.steps = dataset, list[int](), 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.epochs.append(self.dataset.epoch)
        self.steps += 1


def test_fit_needs_nothing_set_and_counts_epochs(model: keras.Model, tfds_folder: Path, engine: EngineName) -> None:
    train, validation = make(tfds_folder, TRAIN, engine), make(tfds_folder, EVALUATE, engine, "validation")
    seen = Seen(train)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(train, validation_data=validation, epochs=3, callbacks=[seen], shuffle=False, verbose=0)
    assert [str(w.message) for w in caught if "ran out of data" in str(w.message)] == []
    assert seen.steps == 3 * 12
    assert model.optimizer.iterations.numpy() == 36
    assert train.epoch == 3
    assert np.all(np.isfinite(history.history["val_loss"]))


@pytest.mark.parametrize("batch_size", [16, 100, 203])
def test_every_epoch_of_fit_is_the_next_of_the_data(tfds_folder: Path, engine: EngineName, batch_size: int) -> None:
    """Epochs of many, two and one batches."""
    train = make(tfds_folder, TRAIN, engine, batch_size=batch_size)
    orders: list[list[int]] = []

    class Spy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.scale = self.add_weight(shape=())

        def train_step(self, data: Any) -> dict[str, Any]:
            tf.py_function(lambda y: orders[-1].extend(y.numpy().tolist()), [data[1]], [])
            return {"loss": self.scale + 0.0}

    spy = Spy()
    spy.compile("sgd")
    start = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: orders.append([]))
    spy.fit(train, epochs=4, callbacks=[start], shuffle=False, verbose=0)
    fresh = make(tfds_folder, TRAIN, engine, batch_size=batch_size)
    assert orders == [[int(n) for _, y in fresh for n in y] for _ in range(4)]


def test_epoch_sync_follows_initial_epoch(model: keras.Model, tfds_folder: Path, engine: EngineName) -> None:
    train = make(tfds_folder, TRAIN, engine)
    model.fit(train, initial_epoch=5, epochs=7, callbacks=[tb.EpochSync(train)], shuffle=False, verbose=0)
    assert train.epoch == 7


def test_repeat_with_steps_per_epoch(model: keras.Model, tfds_folder: Path, engine: EngineName) -> None:
    train = make(tfds_folder, TRAIN, engine, repeat=True)
    model.fit(train, epochs=2, steps_per_epoch=len(train), shuffle=False, verbose=0)
    assert model.optimizer.iterations.numpy() == 24


def test_evaluate_equals_numpy_s_weighted_mean(model: keras.Model, tfds_folder: Path, engine: EngineName) -> None:
    """37 records in batches of 16: the last holds five, and weighs five."""
    validation = make(tfds_folder, EVALUATE, engine, "validation")
    loss, accuracy = model.evaluate(validation, verbose=0)
    images, labels = (np.concatenate(part) for part in zip(*[(x, y) for x, y in validation], strict=True))
    assert len(labels) == 37
    logits = np.asarray(model(images, training=False), np.float64)
    logits -= logits.max(1, keepdims=True)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(37), labels]
    assert loss == pytest.approx(losses.mean(), rel=1e-5)
    assert accuracy == pytest.approx((logits.argmax(1) == labels).mean(), abs=1e-6)


def test_predict_rows_are_the_records_in_order(model: keras.Model, tfds_folder: Path, engine: EngineName) -> None:
    validation = make(tfds_folder, EVALUATE, engine, "validation")
    rows = model.predict(validation, verbose=0)
    expected = np.concatenate([np.asarray(model(x, training=False)) for x, _ in validation])
    assert rows.shape == (37, 10)
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-5)


def test_validation_smaller_than_a_batch(model: keras.Model, tfds_folder: Path, engine: EngineName) -> None:
    validation = make(tfds_folder, EVALUATE, engine, "validation[:5]", batch_size=64)
    assert np.isfinite(model.evaluate(validation, verbose=0)[0])


def test_class_weight_maps_over_the_data_set(model: keras.Model, tfds_folder: Path, engine: EngineName) -> None:
    train = make(tfds_folder, TRAIN, engine)
    model.fit(train, epochs=2, class_weight={k: 1.0 for k in range(10)}, shuffle=False, verbose=0)
    assert train.epoch == 2


def test_many_epochs_leave_nothing_behind(tfds_folder: Path, engine: EngineName) -> None:
    import os
    import threading

    train = make(tfds_folder, TRAIN, engine, "train[:64]")
    counts = []
    for _ in range(12):
        assert sum(1 for _ in train) == 4
        counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
    assert counts[-1][0] <= counts[2][0]
    assert counts[-1][1] <= counts[2][1] + 2


class TestResNet:
    def test_parameters_and_shape_are_the_paper_s(self) -> None:
        model = tb.resnet18(1000, recipe=dp.crop_train(224))
        trainable = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
        assert trainable == 11_689_512  # torchvision.models.resnet18, which follows the paper
        assert model.output_shape == (None, 1000)
        assert model.input_shape == (None, 224, 224, 3)
        assert model.get_layer("stage4_block2_relu").output.shape == (None, 7, 7, 512)
        assert model.get_layer("stem_pool").output.shape == (None, 56, 56, 64)

    @pytest.mark.parametrize("width", [0, 8, 24])
    def test_width_is_a_multiple_of_the_channel_block(self, width: int) -> None:
        with pytest.raises(ValueError, match=f"`width` must be a multiple of 16. Received: width={width}"):
            tb.resnet18(10, recipe=TRAIN, width=width)

    def test_uint8_and_float_recipes_give_the_same_logits(self, tfds_folder: Path) -> None:
        keras.utils.set_random_seed(0)
        inside = tb.resnet18(10, recipe=dp.crop_eval(32, "uint8"), width=16)
        outside = tb.resnet18(10, recipe=dp.crop_eval(32), width=16)
        outside.set_weights(inside.get_weights())
        for one, two in zip(
            make(tfds_folder, dp.crop_eval(32, "uint8"), "dali", "validation"),
            make(tfds_folder, dp.crop_eval(32), "dali", "validation"),
            strict=True,
        ):
            np.testing.assert_allclose(inside(one[0]), outside(two[0]), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
    def test_saved_and_loaded_with_its_normalisation(self, tmp_path: Path, policy: str) -> None:
        keras.config.set_dtype_policy(policy)
        try:
            model = tb.resnet18(10, recipe=TRAIN, width=16)
        finally:
            keras.config.set_dtype_policy("float32")
        model.save(tmp_path / "model.keras")
        images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert loaded.get_layer("preprocess").mean == pytest.approx(dp.IMAGENET_MEAN)
        np.testing.assert_array_equal(loaded(images), model(images))


class TestPreprocess:
    def test_is_the_recipe_s_tail_to_the_bit(self, tfds_folder: Path, engine: EngineName) -> None:
        layer = tb.Preprocess(dp.crop_eval(32, "uint8"))
        whole = make(tfds_folder, dp.crop_eval(32), engine, "validation")
        for (images, _), (normalised, _) in zip(
            make(tfds_folder, dp.crop_eval(32, "uint8"), engine, "validation"), whole, strict=True
        ):
            np.testing.assert_array_equal(layer(images), normalised)

    def test_without_a_tail_it_only_casts(self) -> None:
        images = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
        np.testing.assert_array_equal(tb.Preprocess()(images), images.astype(np.float32))
