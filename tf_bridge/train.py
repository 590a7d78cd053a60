"""`dali-tf train`: a ResNet-18, `model.fit` and the usual callbacks, on a data set of ours."""

from __future__ import annotations  # `dp.Recipe` in a signature would load numpy for `--help`

import argparse
import glob
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dali_pipe as dp

if TYPE_CHECKING:
    import keras

    from tf_bridge.callbacks import Throughput
    from tf_bridge.dataset import ImageDataset


def run(arguments: argparse.Namespace) -> int:
    """Train as the arguments say; returns the exit code."""
    import keras

    from tf_bridge.callbacks import Throughput

    training, evaluation = _recipes(arguments)
    train, validation = _datasets(arguments, training, evaluation)
    classes = _classes(train, validation)
    print(f"Data:    {len(train.records)} images to train, {len(validation.records) if validation else 0} to validate, "
          f"{classes} classes")  # fmt: skip
    print(f"Engine:  {train.engine} on {train.device} ({train.reason})")

    keras.utils.set_random_seed(arguments.seed)
    if arguments.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_float16" if train.device == "gpu" else "mixed_bfloat16")
    model = _model(arguments, training, classes)
    arguments.output.mkdir(parents=True, exist_ok=True)
    meter = Throughput(train.batch_size, "val_accuracy" if validation is not None else "accuracy")
    code = _fit(model, train, validation, arguments, meter)
    _report(model, train, arguments, meter)
    return code


def _recipes(arguments: argparse.Namespace) -> tuple[dp.Recipe, dp.Recipe]:
    make = {"crop": (dp.crop_train, dp.crop_eval), "imagenet": (dp.imagenet_train, dp.imagenet_eval)}
    train, evaluate = make[arguments.recipe]
    return train(arguments.size, arguments.dtype), evaluate(arguments.size, arguments.dtype)


def _datasets(
    arguments: argparse.Namespace, training: dp.Recipe, evaluation: dp.Recipe
) -> tuple[ImageDataset, ImageDataset | None]:
    import tf_bridge as tb
    from dali_pipe import tfds_source

    options: dict[str, Any] = {
        "batch_size": arguments.batch_size,
        "engine": arguments.engine,
        "device": arguments.device,
        "num_threads": arguments.threads,
        "seed": arguments.seed,
    }
    data, validation = arguments.data, arguments.validation
    if data is not None and _is_files(data):
        keys = {"image_key": arguments.image_key or "image", "label_key": arguments.label_key or "label"}
        options |= keys | {"label_offset": arguments.label_offset}
        train = tb.from_tfrecords(data, recipe=training, **options)
        if validation in (None, "none"):
            return train, None
        return train, tb.from_tfrecords(validation, recipe=evaluation, **options)

    data = data or _sample()
    keys = {"image_key": arguments.image_key, "label_key": arguments.label_key, "data_dir": arguments.data_dir}
    options |= keys | {"label_offset": arguments.label_offset}
    splits = tfds_source.read_metadata(tfds_source.find(data, arguments.data_dir)).splits
    train = tb.from_tfds(data, split=arguments.split, recipe=training, **options)
    if validation is None:
        validation = next((name for name in ("validation", "test") if name in splits), "none")
    if validation == "none":
        return train, None
    return train, tb.from_tfds(data, split=validation, recipe=evaluation, **options)


def _is_files(data: str) -> bool:
    return os.path.isfile(data) or (not os.path.isdir(data) and bool(glob.glob(data)))


def _sample() -> Path:
    from dali_pipe.cache import cache_folder
    from tf_bridge import sample_data

    return sample_data.prepare(cache_folder() / "tensorflow_datasets")


def _classes(train: ImageDataset, validation: ImageDataset | None) -> int:
    """As many as the data set names, else as the labels show."""
    records = [ds.records for ds in (train, validation) if ds is not None]
    highest = max(int(r.labels.max()) for r in records) + 1
    return max(highest, len(train.records.classes))


def _model(arguments: argparse.Namespace, recipe: dp.Recipe, classes: int) -> keras.Model:
    import keras

    from tf_bridge.resnet import resnet18

    model = resnet18(classes, recipe=recipe, width=arguments.width)
    model.compile(
        optimizer=keras.optimizers.Adam(arguments.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _fit(
    model: keras.Model,
    train: ImageDataset,
    validation: ImageDataset | None,
    arguments: argparse.Namespace,
    meter: Throughput,
) -> int:
    """Runs `fit`; Ctrl-C keeps what has been learnt."""
    import keras

    output, watched = arguments.output, meter.watched
    callbacks = [
        meter,
        keras.callbacks.TensorBoard(output / "logs"),
        keras.callbacks.ModelCheckpoint(output / "best.keras", monitor=watched, mode="max", save_best_only=True),
        keras.callbacks.ReduceLROnPlateau(monitor=watched, mode="max", factor=0.3, patience=3),
        keras.callbacks.EarlyStopping(monitor=watched, mode="max", patience=8),
    ]
    try:
        # Keras 3.15 warns of `shuffle` for every tf.data.Dataset; ours is shuffled, as its recipe asks.
        model.fit(
            train,
            validation_data=validation,
            epochs=arguments.epochs,
            callbacks=callbacks,
            shuffle=False,
            verbose="auto" if sys.stdout.isatty() else 2,  # a bar in a log file is a thousand lines
        )
    except KeyboardInterrupt:
        model.save(output / "last.keras")
        print(f"\nInterrupted; the model so far is in {output / 'last.keras'}.")
        return 130
    model.save(output / "last.keras")
    return 0


def _report(model: keras.Model, train: ImageDataset, arguments: argparse.Namespace, meter: Throughput) -> None:
    print(f"Model:   ResNet-18, width {arguments.width}, {model.count_params():,} parameters")
    print(f"Speed:   {meter.images_per_second:,.0f} images/s (training steps, model included), engine {train.engine}, "
          f"device {train.device}")  # fmt: skip
    if meter.accuracy:
        print(f"Result:  {meter.watched} {max(meter.accuracy):.3f} at best, {meter.accuracy[-1]:.3f} at the end")
    print(f"Saved:   {arguments.output / 'best.keras'}, {arguments.output / 'last.keras'}; "
          f"logs in {arguments.output / 'logs'}")  # fmt: skip
