"""`dali-tf train`: a ResNet-18, `model.fit` and the usual callbacks, on a data set of ours."""

import argparse
import sys
from typing import Any

import keras

import dali_pipe as dp
from tf_bridge import cli_data
from tf_bridge.callbacks import Throughput
from tf_bridge.dataset import ImageDataset, from_records
from tf_bridge.resnet import resnet18


def run(arguments: argparse.Namespace) -> int:
    """Train as the arguments say; returns the exit code."""
    training, evaluation = cli_data.recipes(arguments)
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


def _datasets(
    arguments: argparse.Namespace, training: dp.Recipe, evaluation: dp.Recipe
) -> tuple[ImageDataset, ImageDataset | None]:
    options: dict[str, Any] = {"batch_size": arguments.batch_size, "seed": arguments.seed, **cli_data.engine(arguments)}
    records, held_out = cli_data.open_records(arguments)
    train = from_records(records, recipe=training, **options)
    return train, None if held_out is None else from_records(held_out, recipe=evaluation, **options)


def _classes(train: ImageDataset, validation: ImageDataset | None) -> int:
    """As many as the data set names, else as the labels show."""
    records = [ds.records for ds in (train, validation) if ds is not None]
    highest = max(int(r.labels.max()) for r in records) + 1
    return max(highest, len(train.records.classes))


def _model(arguments: argparse.Namespace, recipe: dp.Recipe, classes: int) -> keras.Model:
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
