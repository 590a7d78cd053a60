"""A run that was stopped, or killed, goes on as if it had not been."""

import functools
import logging
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import dali_pipe as dp
import tf_bridge as tb
from tests import resumable, support
from tests.resumable import BATCH, compiled, dataset, layers
from tf_bridge import cli, state_file
from tf_bridge.choice import EngineName

MIXED = dp.Recipe((dp.RandomCrop(32), dp.RandomFlip()), "uint8", label=dp.OneHot(50), mix=dp.MixUp())
STEPS, EPOCHS = 7, 3


class Stop(Exception):
    """Takes the place of a crash, where a process of its own would take too long."""


def stop_at(epoch: int, step: int) -> keras.callbacks.Callback:
    """In that step of a `fit`, counted from 0, before its state can be saved."""

    class StopAt(keras.callbacks.Callback):
        at = -1

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.at = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if (self.at, batch) == (epoch, step):
                raise Stop

    return StopAt()


def make_model(seed: int, optimizer: Any = "adam", eager: bool = True) -> keras.Model:
    """Run eagerly unless asked: for a few small steps, making graphs takes the longest."""
    keras.utils.set_random_seed(seed)
    return compiled(keras.Model(*layers()), optimizer, run_eagerly=eager)


def batches(ds: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x.numpy(), y.numpy()) for x, y in ds]


class TestRest:
    @pytest.mark.parametrize("shuffle", [True, "exact"])
    def test_is_the_end_of_the_epoch_to_the_bit(
        self, photographs: list[Path], engine: EngineName, shuffle: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if shuffle == "exact":
            monkeypatch.setattr("tf_bridge.dataset.Plan", functools.partial(dp.Plan, max_segments=10))
        ds = dataset(photographs, engine, recipe=MIXED, shuffle=shuffle)
        ds.set_epoch(2)
        whole = batches(ds)
        assert [len(y) for _, y in whole] == [8] * 6 + [2]
        for step in (1, 6):
            rest = ds.rest(2, step)
            assert len(rest) == int(rest.cardinality()) == STEPS - step
            assert rest.element_spec == ds.element_spec
            next(iter(rest))  # Keras makes spare iterators
            for (x, y), (expected, labels) in zip(batches(rest), whole[step:], strict=True):
                np.testing.assert_array_equal(x, expected)
                np.testing.assert_array_equal(y, labels)
        assert ds.epoch == 3

    def test_of_full_batches(self, photographs: list[Path], engine: EngineName) -> None:
        ds = dataset(photographs, engine, drop_remainder=True)
        whole = batches(ds)
        assert [y.tolist() for _, y in batches(ds.rest(0, 4))] == [y.tolist() for _, y in whole[4:]]

    @pytest.mark.parametrize(("epoch", "step"), [(0, 7), (0, -1), (-1, 0)])
    def test_must_be_there(self, photographs: list[Path], epoch: int, step: int) -> None:
        ds = dataset(photographs, "tfdata")
        with pytest.raises(ValueError, match=f"from 0 to 6. Received: epoch={epoch}, step={step}"):
            ds.rest(epoch, step)

    def test_of_an_endless_stream(self, photographs: list[Path]) -> None:
        with pytest.raises(ValueError, match="Received: a data set with repeat=True"):
            dataset(photographs, "tfdata", repeat=True).rest(0, 1)


def optimizer(engine: EngineName) -> Any:
    """One that puts averages into the model whenever a `fit` ends, and one that scales the loss."""
    if engine == "dali":
        return keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9)
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))


class TestGoesOn:
    def test_to_the_weights_of_an_unbroken_run(
        self, photographs: list[Path], tmp_path: Path, engine: EngineName
    ) -> None:
        """Stopped in the first epoch, and twice in the second."""

        def callbacks() -> list[keras.callbacks.Callback]:
            return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)]

        model = make_model(0, optimizer(engine), eager=False)
        ds = dataset(photographs, engine)
        expected = model.fit(ds, epochs=EPOCHS, callbacks=callbacks(), shuffle=False, verbose=0)

        for place, stop in enumerate([(0, 4), (1, 2), (1, 4), None]):
            resumed = make_model(place, optimizer(engine), eager=False)
            state = tb.TrainingState(tmp_path, dataset(photographs, engine), save_every=2)
            if stop is None:
                history = tb.fit_resumable(resumed, state, epochs=EPOCHS, callbacks=callbacks(), verbose=0)
            else:
                with pytest.raises(Stop):
                    tb.fit_resumable(resumed, state, epochs=EPOCHS, callbacks=[*callbacks(), stop_at(*stop)], verbose=0)
        assert int(resumed.optimizer.iterations.numpy()) == EPOCHS * STEPS
        for ours, theirs in zip(resumed.weights, model.weights, strict=True):
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-5, err_msg=ours.path)
        assert history.epoch == [1, 2]
        for logs in ("loss", "accuracy", "learning_rate"):
            assert [e[logs] for e in state.history] == pytest.approx(expected.history[logs], rel=1e-4)
        assert state.dataset.epoch == EPOCHS

    def test_by_hand(self, photographs: list[Path], tmp_path: Path) -> None:
        def train(stop: list[keras.callbacks.Callback]) -> keras.Model:
            model, ds = make_model(0), dataset(photographs, "tfdata")
            state = tb.TrainingState(tmp_path, ds, save_every=3)
            options: dict[str, Any] = {"callbacks": [*stop, state], "shuffle": False, "verbose": 0}
            epoch, step = state.restore(model)
            if step:
                with pytest.raises(ValueError, match=re.escape("on dataset.rest(0, 3), 4 steps. Received: 7 steps")):
                    model.fit(ds, initial_epoch=epoch, epochs=2, **options)
                state.restore(model)
                model.fit(ds.rest(epoch, step), initial_epoch=epoch, epochs=epoch + 1, **options)
                epoch += 1
            model.fit(ds, initial_epoch=epoch, epochs=2, **options)
            return model

        with pytest.raises(Stop):
            train([stop_at(0, 5)])
        assert int(train([]).optimizer.iterations.numpy()) == 2 * STEPS

    def test_a_finished_run_is_left_alone(self, photographs: list[Path], tmp_path: Path) -> None:
        model, again = (make_model(seed, optimizer("dali")) for seed in (0, 1))
        tb.fit_resumable(model, tb.TrainingState(tmp_path, dataset(photographs, "tfdata")), epochs=1, verbose=0)
        state = tb.TrainingState(tmp_path, dataset(photographs, "tfdata"))
        assert tb.fit_resumable(again, state, epochs=1, verbose=0).epoch == []
        np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
        assert tb.fit_resumable(again, state, epochs=2, verbose=0).epoch == [1]

    def test_a_run_that_a_callback_ended_has_ended(self, photographs: list[Path], tmp_path: Path) -> None:
        state = tb.TrainingState(tmp_path, dataset(photographs, "tfdata"))
        early = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1)
        assert tb.fit_resumable(make_model(0), state, epochs=9, callbacks=[early], verbose=0).epoch == [0, 1]
        state = tb.TrainingState(tmp_path, dataset(photographs, "tfdata"))
        assert tb.fit_resumable(make_model(0), state, epochs=9, verbose=0).epoch == []
        assert state.stopped and len(state.history) == 2

    def test_callbacks_see_one_training(self, photographs: list[Path], tmp_path: Path) -> None:
        state = tb.TrainingState(tmp_path, dataset(photographs, "tfdata"), save_every=2)
        with pytest.raises(Stop):
            tb.fit_resumable(make_model(0), state, epochs=3, callbacks=[stop_at(0, 3)], verbose=0)
        said: list[str] = []
        spy = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: said.append("begin"),
            on_train_end=lambda logs: said.append("end"),
            on_epoch_end=lambda epoch, logs: said.append(f"epoch {epoch}"),
        )
        tb.fit_resumable(make_model(0), state, epochs=3, callbacks=[spy], verbose=0)
        assert said == ["begin", "epoch 0", "epoch 1", "epoch 2", "end"]

    def test_an_epoch_cut_short_is_not_saved_as_a_whole_one(self, photographs: list[Path], tmp_path: Path) -> None:
        class Enough(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.model.stop_training = batch == 3

        state = tb.TrainingState(tmp_path, dataset(photographs, "tfdata"), save_every=3)
        tb.fit_resumable(make_model(0), state, epochs=3, callbacks=[Enough()], verbose=0)
        assert tb.TrainingState(tmp_path, state.dataset).restore(make_model(0)) == (0, 3)


@pytest.fixture(scope="module")
def saved(photographs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States of a run after 4 steps of epoch 0 and, before it, after 2."""
    folder = tmp_path_factory.mktemp("saved")
    state = tb.TrainingState(folder, dataset(photographs, "tfdata"), save_every=2)
    with pytest.raises(Stop):
        tb.fit_resumable(make_model(0), state, epochs=3, callbacks=[stop_at(0, 5)], verbose=0)
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


class TestAnotherRun:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"seed": 4}, "`seed` must be .* had: 3. Received: seed=4"),
            ({"batch_size": 4}, "`batch_size` must be .* had: 8. Received: batch_size=4"),
            ({"shuffle": False}, "`shuffle` must be .* had: True. Received: shuffle=False"),
            ({"drop_remainder": True}, "`drop_remainder` must be .* had: False"),
            ({"recipe": dp.Recipe((dp.RandomCrop(16),), "uint8")}, "`recipe` must be .* had: .*RandomFlip"),
            ({"label_offset": -1}, "`records` must be .* had: 50 records, .* Received: records=50 records"),
            ({"shard": (1, 2)}, r"`shard` must be .* had: \[0, 1\]. Received: shard=\[1, 2\]"),
        ],
    )
    def test_with_other_data(self, run: Path, photographs: list[Path], options: dict[str, Any], words: str) -> None:
        state = tb.TrainingState(run, dataset(photographs, "tfdata", **options))
        with pytest.raises(ValueError, match=f"{words}.*Make the data set as it was then, or choose another folder"):
            tb.fit_resumable(make_model(0), state, epochs=3, verbose=0)

    def test_on_the_other_engine_it_goes_on(self, run: Path, photographs: list[Path]) -> None:
        assert tb.TrainingState(run, dataset(photographs, "dali")).restore(make_model(0)) == (0, 4)

    def test_with_another_model(self, run: Path, photographs: list[Path]) -> None:
        state = tb.TrainingState(run, dataset(photographs, "tfdata"))
        wide = compiled(keras.Model(*layers(9)))
        before = wide.get_weights()
        with pytest.raises(ValueError, match=r"The model must be made .* \(768, 8\). Received: float32 \(768, 9\)"):
            state.restore(wide)
        np.testing.assert_array_equal(wide.get_weights()[0], before[0])
        with pytest.raises(ValueError, match=r"The optimizer must be made .*variables were saved. Received: 2 variab"):
            state.restore(make_model(0, "sgd"))
        with pytest.raises(ValueError, match="must be compiled"):
            state.restore(keras.Model(*layers()))

    def test_a_model_not_yet_built_is_built(self, run: Path, photographs: list[Path]) -> None:
        state = tb.TrainingState(run, dataset(photographs, "tfdata"))
        inputs, outputs = layers()
        model = compiled(keras.Sequential(keras.Model(inputs, outputs).layers[1:]))
        assert state.restore(model) == (0, 4)
        assert int(model.optimizer.iterations.numpy()) == 4

    def test_other_metrics_only_lose_the_epoch_s_beginning(
        self, run: Path, photographs: list[Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        model = keras.Model(*layers())
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        tb.fit_resumable(model, tb.TrainingState(run, dataset(photographs, "tfdata")), epochs=1, verbose=0)
        assert "The metrics are not those of the saved run" in caplog.text

    def test_arguments(self, photographs: list[Path], tmp_path: Path) -> None:
        ds = dataset(photographs, "tfdata")
        with pytest.raises(ValueError, match="`save_every` must be a positive int or None"):
            tb.TrainingState(tmp_path, ds, save_every=0)
        with pytest.raises(TypeError, match="`dataset` must be an ImageDataset, not what `map` makes"):
            tb.TrainingState(tmp_path, ds.map(lambda x, y: (x, y)))
        with pytest.raises(ValueError, match="repeat=True"):
            tb.TrainingState(tmp_path, dataset(photographs, "tfdata", repeat=True))
        with pytest.raises(TypeError, match="`initial_epoch` follows from `state`"):
            tb.fit_resumable(make_model(0), tb.TrainingState(tmp_path, ds), epochs=2, initial_epoch=1)

    def test_one_that_is_not_to_be_resumed_is_replaced(self, run: Path, photographs: list[Path]) -> None:
        state = tb.TrainingState(run, dataset(photographs, "tfdata", seed=9), resume=False)
        assert tb.fit_resumable(make_model(0), state, epochs=1, verbose=0).epoch == [0]
        assert [path.name for path in run.iterdir()] == [state_file.NAME]
        assert tb.TrainingState(run, state.dataset).restore(make_model(1)) == (1, 0)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    np.savez(path, weights=np.zeros(3))


def of_a_later_version(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_file, "VERSION", 2)
        state_file.write(path.parent, state_file.Saved({}, {}), keep=True)


FAULTS: dict[Callable[[Path], None], str] = {
    cut: "is not a whole training state",
    damage: "is not a whole training state",
    foreign: "is not a training state, but some other .npz file",
    of_a_later_version: "must be of version 1. Received: version 2",
}


class TestBrokenFile:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_state_before_it_is_used(
        self, run: Path, photographs: list[Path], caplog: pytest.LogCaptureFixture, fault: Callable[[Path], None]
    ) -> None:
        if fault is of_a_later_version:
            (run / state_file.PREVIOUS).unlink()
        fault(run / state_file.NAME)
        state = tb.TrainingState(run, dataset(photographs, "tfdata"), save_every=2)
        step = 4 if fault is of_a_later_version else 2  # writing it made the fourth step's the previous one
        assert state.restore(make_model(0)) == (0, step)
        assert FAULTS[fault] in caplog.text and str(run / state_file.PREVIOUS) in caplog.text

    def test_is_not_kept_as_the_state_before_the_next(self, run: Path, photographs: list[Path]) -> None:
        cut(run / state_file.NAME)
        state = tb.TrainingState(run, dataset(photographs, "tfdata"), save_every=2)
        with pytest.raises(Stop):
            tb.fit_resumable(make_model(0), state, epochs=1, callbacks=[stop_at(0, 2)], verbose=0)
        assert state.restore(make_model(0)) == (0, 4)
        cut(run / state_file.NAME)
        with pytest.raises(ValueError, match=r"state.npz is not a whole training state"):
            state.restore(make_model(0))

    def test_two_broken_files_are_an_error(self, run: Path, photographs: list[Path]) -> None:
        cut(run / state_file.NAME)
        (run / state_file.PREVIOUS).write_text("notes")
        with pytest.raises(ValueError, match=r"state.npz is not a whole .*previous.npz is not .*Move such files out"):
            tb.TrainingState(run, dataset(photographs, "tfdata")).restore(make_model(0))

    def test_a_file_that_was_being_written_is_passed_over(
        self, run: Path, photographs: list[Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        (run / state_file.ASIDE).write_bytes((run / state_file.NAME).read_bytes()[:1000])
        assert tb.TrainingState(run, dataset(photographs, "tfdata")).restore(make_model(0)) == (0, 4)
        assert "was being written when the run ended" in caplog.text

    def test_a_disk_that_is_full_leaves_the_last_state(
        self, run: Path, photographs: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*args: Any) -> None:
            raise OSError("No space left on device")

        state = tb.TrainingState(run, dataset(photographs, "tfdata"))
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(OSError, match="No space left"):
                tb.fit_resumable(make_model(0), state, epochs=1, verbose=0)
        assert state.restore(make_model(0)) == (0, 4)
        assert not (run / state_file.ASIDE).exists()


def survive(
    files: list[Path], folder: Path, engine: EngineName, epochs: int, kills: list[int], **options: Any
) -> tuple[int, int]:
    """Train with these kills, each so many steps after the last, and check what the model has seen.

    Returns:
        Kills survived, and how many of them hit a state that was being written.
    """
    folder.mkdir()
    died = torn = 0
    for seed, kill in enumerate([*kills, None]):
        arguments = {"epochs": epochs, "kill": kill, "seed": seed, **options}
        code = (
            f"from pathlib import Path\nfrom tests import resumable\n"
            f"resumable.train({[str(f) for f in files]!r}, Path({str(folder)!r}), {engine!r}, **{arguments!r})\n"
        )
        done = support.run_forked(code, folder)
        assert done.returncode in (0, -9), done.stderr[-3000:]
        assert "ran out of data" not in done.stderr
        died += done.returncode == -9
        torn += done.returncode == -9 and (folder / state_file.ASIDE).exists()
    assert done.returncode == 0, done.stderr[-3000:]
    expected = dataset(files, "tfdata")
    seen = resumable.replay(folder / "log")
    assert list(seen) == list(range(epochs))
    for epoch in range(epochs):
        assert seen[epoch] == [y.tolist() for _, y in batches(expected.rest(epoch, 0))], epoch
        assert sorted(n for batch in seen[epoch] for n in batch) == list(range(resumable.RECORDS))
    assert (folder / "log").read_text().splitlines()[-1] == f"iterations {epochs * -(-resumable.RECORDS // BATCH)}"
    return died, torn


def same_weights(one: Path, two: Path) -> None:
    with np.load(one / "final.npz") as ours, np.load(two / "final.npz") as theirs:
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


class TestKilled:
    def test_every_record_counts_once(self, photographs: list[Path], tmp_path: Path) -> None:
        """Three SIGKILLs, the second in the epoch of the first."""
        assert survive(photographs, tmp_path / "run", "dali", 2, [3, 2, 5], save_every=1)[0] == 3

    @pytest.mark.slow
    @pytest.mark.parametrize("save_every", [1, 3])
    def test_many_times(self, photographs: list[Path], tmp_path: Path, engine: EngineName, save_every: int) -> None:
        """A larger model, so that many of the kills hit a state being written."""
        rng = random.Random(save_every)
        kills = [save_every + rng.randrange(6) for _ in range(20)]
        options = {"save_every": save_every, "width": 512}
        died, torn = survive(photographs, tmp_path / "run", engine, 20, kills, **options)
        assert died == len(kills)
        print(f"{engine}, a state each {save_every} steps: {died} kills, {torn} of them while one was written")
        survive(photographs, tmp_path / "unbroken", engine, 20, [], **options)
        same_weights(tmp_path / "run", tmp_path / "unbroken")


def test_the_command_goes_on(
    tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(*options: str) -> tuple[int, str]:
        small = ["--size", "32", "--width", "16", "--batch-size", "16", "--validation", "none"]
        code = cli.main(["train", str(tfds_folder), *small, "--output", str(tmp_path / "run"), *options])
        return code, "".join(capsys.readouterr())

    def small_model(classes: int, recipe: dp.Recipe, width: int) -> keras.Model:
        inputs = keras.Input((32, 32, 3), dtype="uint8")
        return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.Flatten()(tb.Preprocess(recipe)(inputs))))

    monkeypatch.setattr("tf_bridge.train.resnet18", small_model)

    class CtrlC(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 7:
                raise KeyboardInterrupt

    def interrupted(at: int, *options: str) -> tuple[int, str]:
        def ctrl_c(meter: Any, batch: int, logs: Any = None) -> None:
            if batch == at:
                signal.raise_signal(signal.SIGINT)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tf_bridge.train.Throughput.on_train_batch_end", ctrl_c)
            return command(*options)

    code, told = interrupted(7, "--resume", "--epochs", "1")
    assert code == 130 and "nothing is saved" in told
    assert "last.keras. --resume goes on with the run, at epoch 1, step 9." in told  # the step was finished, and saved
    assert "nan" not in told and "best.keras" not in told  # neither is there yet
    code, told = command("--resume", "--epochs", "1")
    assert code == 0 and "Resume:  epoch 1 of 1, step 9 of 12" in told
    assert "Resume:  the run has ended after epoch 1: --epochs is 1" in command("--resume", "--epochs", "1")[1]
    last = (tmp_path / "run" / "last.keras").read_bytes()
    code, told = interrupted(1, "--epochs", "3")  # --resume was forgotten
    assert code == 130 and "run is as it was" in told
    assert (tmp_path / "run" / "last.keras").read_bytes() == last
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tf_bridge.train.Throughput.on_train_batch_end", CtrlC.on_train_batch_end)
        code, told = command("--resume", "--epochs", "3", "--save-every", "5")
    assert code == 130 and "Resume:  epoch 2 of 3, step 1 of 12" in told and "--resume goes on" in told
    code, told = command("--resume", "--epochs", "3")
    assert code == 0 and "Resume:  epoch 2 of 3, step 6 of 12" in told
    assert keras.saving.load_model(tmp_path / "run" / "last.keras").optimizer.iterations.numpy() == 3 * 12
    code, told = interrupted(11, "--resume", "--epochs", "4")  # in the last step of all
    assert code == 0 and "Interrupted" not in told and "Result:" in told
    code, told = command("--resume", "--epochs", "3", "--seed", "1")
    assert code == 2 and "`--seed` must be" in told
    assert "--resume would go on with it" in command("--epochs", "1", "--seed", "1")[1]
