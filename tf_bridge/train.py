"""`dali-tf train`: a ResNet-18, `model.fit` and the usual callbacks, on a data set of ours."""

import argparse
import contextlib
import io
import os
import sys
from typing import Any

import keras
import tensorflow as tf

import dali_pipe as dp
from tf_bridge import cli_data, cluster, quiet, state_file
from tf_bridge.callbacks import Throughput
from tf_bridge.dataset import ImageDataset, from_records
from tf_bridge.distributed import DistributedImages, distribute
from tf_bridge.input_monitor import InputMonitor
from tf_bridge.interrupt import Interrupt
from tf_bridge.profiling import StepProfile
from tf_bridge.resnet import resnet18
from tf_bridge.resume import TrainingState, fit_resumable

Images = ImageDataset | DistributedImages


def run(arguments: argparse.Namespace) -> int:
    """Train as the arguments say; returns the exit code. Of several workers, the chief speaks."""
    strategy = cluster.strategy(arguments.strategy)
    silence = contextlib.nullcontext() if cluster.is_chief(strategy) else contextlib.redirect_stdout(io.StringIO())
    with silence:
        return _run(arguments, strategy)


def _run(arguments: argparse.Namespace, strategy: tf.distribute.Strategy | None) -> int:
    training, evaluation = cli_data.recipes(arguments)
    with quiet.decoders(shown=arguments.verbose):
        train, validation = _datasets(arguments, training, evaluation, strategy)
    classes = _classes(train, validation)
    print(f"Data:    {len(train.records)} images to train, {len(validation.records) if validation else 0} to validate, "
          f"{classes} classes")  # fmt: skip
    if arguments.on_error != "raise":
        print(f"Bad:     {_bad(train)}" + (f"; to validate: {_bad(validation)}" if validation else ""))
    print(f"Engine:  {train.engine} on {train.device} ({train.reason})")
    if strategy is not None:
        print(f"Devices: {strategy.num_replicas_in_sync} replicas, {train.batch_size} images a step over all")

    keras.utils.set_random_seed(arguments.seed)
    if arguments.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_float16" if train.device == "gpu" else "mixed_bfloat16")
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = _model(arguments, training, classes)
    arguments.output.mkdir(parents=True, exist_ok=True)
    meter, watched = Throughput(train.batch_size), "val_accuracy" if validation is not None else "accuracy"
    state = TrainingState(arguments.output, train, arguments.save_every, arguments.resume)
    _announce(model, state, arguments)
    code = _fit(model, state, validation, arguments, meter, watched)
    _report(model, state, arguments, meter, watched)
    return code


def _datasets(
    arguments: argparse.Namespace,
    training: dp.Recipe,
    evaluation: dp.Recipe,
    strategy: tf.distribute.Strategy | None = None,
) -> tuple[Images, Images | None]:
    options: dict[str, Any] = {"batch_size": arguments.batch_size, "seed": arguments.seed, **cli_data.engine(arguments)}
    options.update(on_error=arguments.on_error, max_bad=arguments.max_bad)
    records, held_out = cli_data.open_records(arguments)

    def make(records: dp.Records, recipe: dp.Recipe) -> Images:
        if strategy is None:
            return from_records(records, recipe=recipe, **options)
        return distribute(strategy, lambda shard: from_records(records, recipe=recipe, shard=shard, **options))

    return make(records, training), None if held_out is None else make(held_out, evaluation)


def _bad(dataset: Images) -> str:
    return f"{len(dataset.skipped)} records left out, {len(dataset.repaired)} repaired"


def _classes(train: Images, validation: Images | None) -> int:
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


def _announce(model: keras.Model, state: TrainingState, arguments: argparse.Namespace) -> None:
    """Say where the run begins."""
    epoch, step = state.restore(model)
    if state.stopped or epoch >= arguments.epochs:
        why = "early stopping ended it" if state.stopped else f"--epochs is {arguments.epochs}"
        way_on = "another --output begins a new one" if state.stopped else "more --epochs go on with it"
        print(f"Resume:  the run has ended after epoch {epoch}: {why}; {way_on}")
    elif (epoch, step) != (0, 0):
        print(f"Resume:  epoch {epoch + 1} of {arguments.epochs}, step {step + 1} of {len(state.dataset)}")
    elif arguments.resume:
        print(f"Resume:  nothing is saved in {arguments.output}; beginning")
    elif (arguments.output / state_file.NAME).exists():
        print(f"Note:    {arguments.output} holds the state of a run, which is lost when this one saves its own; "
              "--resume would go on with it")  # fmt: skip


def _fit(
    model: keras.Model,
    state: TrainingState,
    validation: Images | None,
    arguments: argparse.Namespace,
    meter: Throughput,
    watched: str,
) -> int:
    """Runs `fit`; Ctrl-C keeps what has been learnt, and the state from which `--resume` goes on."""
    output = arguments.output
    ended = state.stopped
    best = max((logs[watched] for logs in state.history if watched in logs), default=None)
    chief = cluster.is_chief(model.distribute_strategy)
    writing = [
        InputMonitor(state.dataset, output / "logs" / "input"),
        keras.callbacks.TensorBoard(output / "logs"),
        keras.callbacks.ModelCheckpoint(
            output / "best.keras", monitor=watched, mode="max", save_best_only=True, initial_value_threshold=best
        ),
    ]
    callbacks = [
        meter,
        *(writing if chief else []),
        keras.callbacks.ReduceLROnPlateau(monitor=watched, mode="max", factor=0.3, patience=3),
    ]
    if arguments.patience:
        callbacks.append(keras.callbacks.EarlyStopping(monitor=watched, mode="max", patience=arguments.patience))
    if arguments.profile and chief:
        callbacks.append(StepProfile(output / "logs", min(len(state.history) + 1, arguments.epochs - 1)))
    try:
        with Interrupt(state.save_soon) as interrupt:
            fit_resumable(
                model,
                state,
                epochs=arguments.epochs,
                callbacks=[*callbacks, interrupt],
                validation_data=validation,
                verbose=_verbose(),
            )
    except KeyboardInterrupt:
        if state.place is None and (output / state_file.NAME).exists():
            print(f"\nInterrupted; the run in {output} is as it was.")
            return 130
        if not state.stopped and state.place != (arguments.epochs, 0):  # else it came when all was done
            _save(model, arguments)
            print(f"\nInterrupted; the model so far is in {output / 'last.keras'}. {_way_on(state)}")
            return 130
    _save(model, arguments)
    if state.stopped and not ended:
        print(f"Stopped: {watched} had not risen for {arguments.patience} epochs (--patience)")
    return 0


def _way_on(state: TrainingState) -> str:
    if state.place is None:
        return "Of the run nothing is saved yet."
    epoch, step = state.place
    return f"--resume goes on with the run, at epoch {epoch + 1}, step {step + 1}."


def _verbose() -> int:
    """Keras's: a bar, which is coloured, for terminals; a line an epoch for files and where NO_COLOR is set."""
    return 1 if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else 2


def _save(model: keras.Model, arguments: argparse.Namespace) -> None:
    if cluster.is_chief(model.distribute_strategy):
        model.save(arguments.output / "last.keras")


def _report(
    model: keras.Model, state: TrainingState, arguments: argparse.Namespace, meter: Throughput, watched: str
) -> None:
    print(f"Model:   ResNet-18, width {arguments.width}, {model.count_params():,} parameters")
    train, accuracy = state.dataset, [logs[watched] for logs in state.history if watched in logs]
    if speed := meter.images_per_second:
        print(f"Speed:   {speed:,.0f} images/s (training steps, model included), engine {train.engine}, "
              f"device {train.device}")  # fmt: skip
    if accuracy:
        print(f"Result:  {watched} {max(accuracy):.3f} at best, {accuracy[-1]:.3f} at the end")
    models = [str(path) for name in ("best.keras", "last.keras") if (path := arguments.output / name).exists()]
    print(f"Saved:   {', '.join(models)}; logs in {arguments.output / 'logs'}")
    if arguments.profile:
        print(f"Profile: pip install xprof, then tensorboard --logdir {arguments.output / 'logs'}: "
              "tab Profile, tool input_pipeline_analyzer")  # fmt: skip
