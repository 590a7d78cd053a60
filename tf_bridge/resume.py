"""A training run that goes on where it was killed, in the middle of an epoch too, as if nothing had happened."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_bridge import model_state, state_file
from tf_bridge.dataset import ImageDataset
from tf_bridge.distributed import DistributedImages, agreed
from tf_bridge.model_state import Values
from tf_bridge.state_file import Saved
from tf_bridge.workers import across_workers, several

log = logging.getLogger(__name__)


class _Restored(NamedTuple):
    epoch: int
    step: int
    groups: dict[str, Values]


class TrainingState(keras.callbacks.Callback):
    """Saves a run as it goes, and restores it.

    Every `save_every` steps and at each epoch's end, one file gets the model's variables (those of random layers too),
    the optimizer's, the running metrics, and the place in the data: `(seed, epoch, step)`. It replaces the one before
    in a single rename. An epoch that a callback cuts short is not saved as a whole one.

    Not restored: what callbacks remember (the patience of `EarlyStopping` and `ReduceLROnPlateau`, the best value of
    `ModelCheckpoint`), and Keras's global random state. The learning rate is a variable of the optimizer, so it is
    restored, also where the model was compiled with another one.

    Of several workers each has one, on the same folder: the chief writes it, all read it.

    It must be the last of the callbacks, to save what the others did; `fit_resumable` sees to that.

    Args:
        folder: where the state is kept, as `state.npz`.
        dataset: the training data, made with a `seed`.
        save_every: steps between two states; None saves at each epoch's end only.
        resume: False takes no notice of a state that is there, and replaces it with the first of its own.

    Attributes:
        dataset: as given.
        history: the logs of each epoch that ended, of the whole run.
        stopped: a callback ended the run.
        place: the epoch and the step of it that follow on what is saved; None while nothing is.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        dataset: ImageDataset | DistributedImages,
        save_every: int | None = None,
        resume: bool = True,
    ):
        super().__init__()
        if save_every is not None and (not isinstance(save_every, int) or save_every <= 0):
            raise ValueError(f"`save_every` must be a positive int or None. Received: save_every={save_every!r}")
        if not isinstance(dataset, ImageDataset | DistributedImages):
            raise TypeError(f"`dataset` must be an ImageDataset, not what `map` makes of one. Received: {dataset!r}")
        if int(dataset.cardinality()) < 0:
            raise ValueError("`dataset` must have epochs that end. Received: a data set with repeat=True")
        self.dataset, self.history, self.stopped = dataset, list[dict[str, float]](), False
        self._folder, self._every, self._resume = Path(folder), save_every, resume
        self._run = dataset.identity
        self._restored: _Restored | None = None  # until its epoch begins
        self.place: tuple[int, int] | None = None
        self._ours = False  # whether the file that is there is a good one of this run
        self._soon = False
        self._epoch = self._first = self._step = self._saved_step = 0

    def restore(self, model: keras.Model) -> tuple[int, int]:
        """Put a compiled model where the run was.

        Returns:
            The epoch and the step of it that come next; (0, 0) if nothing was saved. With a step above 0, the next
            `fit` must be on `dataset.rest(epoch, step)`, for this one epoch.

        Raises:
            ValueError: the saved run had other data, or another model; or there is no whole state, but a broken one; or
                workers see other states.
        """
        agreed(model.distribute_strategy, 0)  # the chief, for whom the others wait here, may be writing yet
        found = state_file.read(self._folder) if self._resume else None
        self._check_workers(model, found)
        if found is None:
            self.history, self.stopped = [], False
            return 0, 0
        saved, self._ours = found
        header = saved.header
        self._check_run(header["run"])
        with model.distribute_strategy.scope():
            model_state.build(model, _zeros(self.dataset))
        model_state.assign(model, saved.groups)
        self.history, self.stopped = header["history"], header["stopped"]
        self._restored = _Restored(header["epoch"], header["step"], saved.groups)
        self.place = self._restored.epoch, self._restored.step
        log.info("%s goes on after epoch %d, step %d.", self._folder, *self.place)
        return self.place

    def _check_workers(self, model: keras.Model, found: tuple[Saved, bool] | None) -> None:
        place = found[0].header["epoch"] * len(self.dataset) + found[0].header["step"] if found else -1
        if len(set(agreed(model.distribute_strategy, place))) > 1:
            raise ValueError(
                f"All workers must see the same folder, one that they share. Received: {self._folder}, where they find "
                "different states."
            )

    def _check_run(self, saved: dict[str, Any]) -> None:
        for name, now in self._run.items():
            if saved.get(name) != now:
                raise ValueError(
                    f"`{name}` must be what the run saved in {self._folder} had: {saved.get(name)}. "
                    f"Received: {name}={now}. Make the data set as it was then, or choose another folder."
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Runs before Keras makes the epoch's iterator, and after the other callbacks."""
        restored, self._restored = self._restored, None
        if restored is not None and epoch != restored.epoch:
            raise ValueError(f"`initial_epoch` must be the epoch restored, {restored.epoch}. Received: epoch {epoch}")
        self._epoch, self._first = epoch, restored.step if restored else 0
        self._step = self._saved_step = self._first
        self._check_steps()
        self.dataset.set_epoch(epoch)
        if restored is not None and restored.step:
            # The other callbacks have done once more what they do as an epoch begins; the state has it already.
            model_state.assign(self.model, restored.groups)
            model_state.assign_metrics(self.model, restored.groups)

    def _check_steps(self) -> None:
        steps, expected = (self.params or {}).get("steps"), len(self.dataset) - self._first
        if steps is not None and steps != expected:
            data = f"dataset.rest({self._epoch}, {self._first})" if self._first else "the whole data set"
            raise ValueError(f"`fit` must run epoch {self._epoch} on {data}, {expected} steps. Received: {steps} steps")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Save, if it is time."""
        self._step = self._first + batch + 1
        # After the last step the other callbacks have yet to do what they do at an epoch's end.
        due = self._every is not None and self._step - self._saved_step >= self._every
        if (due or self._soon) and self._step < len(self.dataset) and not self.model.stop_training:
            self._save(self._epoch, self._step)
            self._saved_step = self._step

    def save_soon(self) -> None:
        """Save when the step under way has ended.

        Nothing happens where that would cost another run its state, and where there are several workers, of whom none
        can save alone.
        """
        ours = self._ours or not (self._folder / state_file.NAME).exists()
        alone = self.model is not None and not several(self.model.distribute_strategy)
        self._soon = ours and alone

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save, unless the epoch was cut short."""
        if self._step < len(self.dataset):
            return
        self.history.append({name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0})
        self.stopped = bool(self.model.stop_training)
        self._save(epoch + 1, 0)

    def _save(self, epoch: int, step: int) -> None:
        header = {"run": self._run, "epoch": epoch, "step": step, "history": self.history, "stopped": self.stopped}
        values = model_state.take(self.model)  # on every worker: some variables are a sum over them
        if self.model.distribute_strategy.extended.should_checkpoint:
            state_file.write(self._folder, Saved(header, values), keep=self._ours)
        self._ours = self._resume = True
        self.place, self._soon = (epoch, step), False


def _zeros(dataset: ImageDataset | DistributedImages) -> tuple[tf.Tensor, tf.Tensor]:
    """A batch of one, of the data set's shapes."""
    recipe = dataset.recipe
    return tf.zeros((1, *recipe.output_shape), recipe.dtype), tf.zeros((1, *recipe.label_shape), recipe.label_dtype)


class _OneTraining(keras.callbacks.CallbackList):
    """Makes several `fit`s one training for the callbacks: one beginning, one end."""

    def __init__(self, callbacks: list[keras.callbacks.Callback], model: keras.Model, progress: bool):
        super().__init__(callbacks, add_progbar=progress, model=model)
        self.begun = False
        self._last_logs: dict[str, Any] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Once."""
        if not self.begun:
            self.begun = True
            super().on_train_begin(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Not yet."""
        self._last_logs = logs

    def end(self) -> None:
        """The end, if anything was trained."""
        if self.begun:
            super().on_train_end(self._last_logs)


def fit_resumable(
    model: keras.Model,
    state: TrainingState,
    *,
    epochs: int,
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    **fit_options: Any,
) -> keras.callbacks.History:
    """`model.fit` on the state's data set, from where the run was, or from the start if nothing was saved.

    The same call begins a run and goes on with it. What is left of an epoch is a `fit` of its own, as Keras cannot
    begin in the middle of one; the callbacks see one training all the same, and the epoch's metrics are those of the
    whole epoch. (To the callbacks, the batches of that epoch count from 0.) A run that a callback stopped at an epoch's
    end, as `EarlyStopping` does, has ended: nothing is trained then.

    Args:
        model: a compiled model, made as it was for the run.
        state: where the run is kept, and its data.
        epochs: of the whole run, as for `fit`.
        callbacks: as for `fit`.
        **fit_options: as for `fit`: `validation_data`, `verbose`, ….

    Returns:
        The History of the epochs that this call ended; `state.history` has the whole run's.

    Raises:
        ValueError: the state's folder holds another run, or nothing that is whole; says which.
    """
    for name in {"x", "y", "batch_size", "initial_epoch", "steps_per_epoch"} & fit_options.keys():
        raise TypeError(f"`{name}` follows from `state`: leave it out. Received: {name}={fit_options[name]!r}")
    # Keras 3.15 warns of `shuffle` for every tf.data.Dataset; ours is shuffled, as its recipe asks.
    options = {"shuffle": False, "verbose": "auto", **fit_options}
    history = keras.callbacks.History()
    history.on_train_begin()  # it has its epochs, none, even if nothing is left to train
    others = [callback for callback in callbacks or () if callback is not state]
    across_workers(model)
    training = _OneTraining([*others, history, state], model, options["verbose"] != 0)

    def run(dataset: ImageDataset | DistributedImages, epoch: int, end: int) -> bool:
        training.set_params({"verbose": options["verbose"], "epochs": epochs, "steps": len(dataset)})
        model.fit(dataset, initial_epoch=epoch, epochs=end, callbacks=training, **options)
        return not model.stop_training

    epoch, step = state.restore(model)
    going_on = epoch < epochs and not state.stopped
    if going_on and step:
        going_on = run(state.dataset.rest(epoch, step), epoch, epoch + 1)
        # From the file again: at its end, `fit` has put the averages of an optimizer with `use_ema` into the model.
        epoch, step = state.restore(model) if going_on else (epoch, step)
    if going_on and epoch < epochs:
        run(state.dataset, epoch, epochs)
    if not training.begun:
        model.optimizer.finalize_variable_values(model.trainable_weights)  # as `fit` does, for `use_ema`
    training.end()
    return history
