"""The share of time that a model waits for input, against clocks of our own."""

import csv
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import dali_pipe as dp
import tf_bridge as tb
from benchmarks import monitor_overhead
from tf_bridge import input_advice, input_monitor
from tf_bridge.input_monitor import EpochInput, Step, account, waits
from tf_bridge.timed_iterator import Pull

Intervals = list[tuple[float, float]]
SIGNATURE = (tf.TensorSpec((4, 3)), tf.TensorSpec((4, 1)))
BATCH = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)


def nap(seconds: float, log: Intervals) -> None:
    """Takes a while without using the CPU, and notes how long it really was."""
    start = time.time()
    time.sleep(seconds)
    log.append((start, time.time()))


class Sleeper(keras.layers.Layer):
    """A layer that takes its time, as an accelerator would."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds, self.log = seconds, list[tuple[float, float]]()

    def call(self, x: Any) -> Any:
        def compute(x: Any) -> Any:
            nap(self.seconds, self.log)
            return x

        y = tf.numpy_function(compute, [x], x.dtype)
        y.set_shape(x.shape)
        return y


def slow_input(seconds: float, steps: int, ahead: int, log: Intervals) -> tf.data.Dataset:
    """Batches that take a while each, made `ahead` of time or when they are asked for."""

    def batches() -> Iterator[Any]:
        for _ in range(steps):
            nap(seconds, log)
            yield BATCH

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    ds = tf.data.Dataset.from_generator(batches, output_signature=SIGNATURE)
    ds = ds.apply(tf.data.experimental.assert_cardinality(steps))
    return (ds.prefetch(ahead) if ahead else ds).with_options(options)


def small_model(*layers: keras.layers.Layer, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def measured(ds: tf.data.Dataset, compute: Sleeper, steps: int) -> tuple[EpochInput, Intervals]:
    """What the monitor says of a second epoch, and when the model computed in it."""
    model, monitor = small_model(compute), tb.InputMonitor(tell=None)
    compute.log.clear()
    model.fit(ds, epochs=2, shuffle=False, verbose=0, callbacks=[monitor])
    return monitor.epochs[1], compute.log[-steps:]


def quick_input(steps: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(BATCH).repeat(steps)


@pytest.mark.slow  # naps are only as long as they should be on a machine with time to spare
@pytest.mark.parametrize(("making", "computing"), [(0.04, 0.01), (0.025, 0.025), (0.01, 0.04)])
def test_share_of_an_input_that_is_made_when_asked_for(making: float, computing: float) -> None:
    made: Intervals = []
    found, computed = measured(slow_input(making, 16, 0, made), Sleeper(computing), 16)
    of_epoch = made[-16:]
    truth = sum(end - start for start, end in of_epoch) / (computed[-1][1] - of_epoch[0][0])
    assert found.input_wait == pytest.approx(truth, abs=0.05)
    assert found.images_per_second == pytest.approx(4 * 15 / (computed[-1][1] - computed[0][1]), rel=0.05)


@pytest.mark.slow
def test_share_of_an_input_that_runs_ahead() -> None:
    made: Intervals = []
    found, computed = measured(slow_input(0.05, 14, 2, made), Sleeper(0.025), 14)
    of_epoch = made[-14:]
    late = [ready - free for (_, ready), (_, free) in zip(of_epoch[1:], computed[:-1], strict=True)]
    first = of_epoch[0][1] - of_epoch[0][0]
    truth = (first + sum(max(0.0, seconds) for seconds in late)) / (computed[-1][1] - of_epoch[0][0])
    assert truth > 0.3
    assert found.input_wait == pytest.approx(truth, abs=0.08)  # Keras itself takes a little of that time


@pytest.mark.slow  # on a busy machine it is not quick
def test_share_of_a_quick_input_is_nothing() -> None:
    assert min(measured(quick_input(16), Sleeper(0.04), 16)[0].input_wait for _ in range(3)) < 0.05


def pulls(*times: tuple[float, float]) -> list[Pull]:
    return [Pull(asked, ready, 10) for asked, ready in times]


@pytest.mark.parametrize(
    ("times", "done", "expected"),
    [
        ([(0, 1), (3, 5)], [3, 8], [1, 2]),  # asks when the step is done
        ([(0, 1), (1, 5)], [4, 8], [1, 1]),  # asks ahead: waits from the end of the step on
        ([(0, 1), (1, 3)], [4, 8], [1, 0]),  # the batch is there before
        ([(0, 1), (5, 6)], [4, 8], [1, 1]),  # something else kept it from asking
        ([(0, 1), (1, 5), (5, 6)], [7, 9, 10], [1, 0, 0]),  # far ahead
        ([], [], []),
    ],
)
def test_waiting_begins_when_the_step_before_is_done(
    times: list[tuple[float, float]], done: list[float], expected: list[float]
) -> None:
    assert waits(pulls(*times), done) == expected


def test_an_epoch_s_account() -> None:
    steps = [Step(pull, done, cpu) for pull, done, cpu in zip(pulls((10, 11), (12, 13)), (12, 15), (5, 7), strict=True)]
    assert account(3, 1.0, steps) == EpochInput(
        epoch=3,
        input_wait=(1 + 1 + 1) / 6,
        images_per_second=10 / 3,
        cpu_ms_per_image=200.0,
        cpu_cores=2 / 3,
        opening=1.0,
        seconds=6.0,
    )


def test_one_step_is_too_few_for_a_speed() -> None:
    found = account(0, 0.0, [Step(Pull(1, 2, 10), 3, 0)])
    assert found.input_wait == 0.5
    assert np.isnan([found.images_per_second, found.cpu_ms_per_image, found.cpu_cores]).all()


def test_on_an_accelerator_steps_end_when_keras_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's call returns at once there; a thread of Keras's then waits for its results."""
    monkeypatch.setattr(input_monitor, "_accelerated", lambda: True)
    model, monitor = small_model(), tb.InputMonitor(tell=None)
    monitor.set_model(model)
    model.make_train_function()
    monitor.on_epoch_begin(0)
    for n, (pull, done) in enumerate(zip(pulls((1, 2), (2, 5), (5, 6)), (4, 9, 10), strict=True)):
        monitor._steps.append(Step(pull, pull.ready, 0))
        monitor._done[n] = done
    monitor.on_epoch_end(0, {})
    assert monitor.epochs[0].input_wait == pytest.approx((1 + 1 + 0) / 9, abs=0.01)


def test_training_is_the_same_with_it_and_afterwards() -> None:
    plain, watched = small_model(), small_model()
    plain.fit(quick_input(5), epochs=2, shuffle=False, verbose=0)
    watched.fit(quick_input(5), epochs=2, shuffle=False, verbose=0, callbacks=[tb.InputMonitor(tell=None)])
    for one, two in zip(plain.get_weights(), watched.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not hasattr(watched.train_function, "unwatched")
    watched.fit(quick_input(5), shuffle=False, verbose=0)


def test_a_second_fit_compiles_nothing_again() -> None:
    traced = []

    class Tracing(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traced.append(1)
            return x

    model = small_model(Tracing())
    for _ in range(2):
        model.fit(quick_input(3), shuffle=False, verbose=0, callbacks=[tb.InputMonitor(tell=None)])
        count = len(traced)
    assert len(traced) == count
    model.fit(quick_input(7), shuffle=False, verbose=0, callbacks=[tb.InputMonitor(tell=None)])
    assert len(traced) == count


def test_after_an_interrupted_fit_the_next_monitor_takes_over() -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    model, first, second = small_model(), tb.InputMonitor(tell=None), tb.InputMonitor(tell=None)
    with pytest.raises(KeyboardInterrupt):
        model.fit(quick_input(3), shuffle=False, verbose=0, callbacks=[first, Stop()])
    model.fit(quick_input(3), shuffle=False, verbose=0, callbacks=[second])
    assert len(first._steps) == 1
    assert len(second.epochs) == 1 and not hasattr(model.train_function, "unwatched")


def test_logs_csv_and_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = tb.InputMonitor(folder=tmp_path / "input", tell=None)
    history = small_model().fit(quick_input(6), epochs=3, shuffle=False, verbose=2, callbacks=[monitor]).history
    assert "input_wait: 0." in capsys.readouterr().out
    assert history["input_wait"] == [epoch.input_wait for epoch in monitor.epochs]
    with open(tmp_path / "input" / "input.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    assert [float(row["images_per_second"]) for row in rows] == history["images_per_second"]
    (events,) = (tmp_path / "input").glob("events.out.tfevents*")
    tags = [v.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for v in event.summary.value]
    assert sorted(tags) == sorted(3 * ["input/input_wait", "input/images_per_second", "input/cpu_ms_per_image"])


@pytest.mark.parametrize("where", ["several steps a call", "strategy"])
def test_what_it_cannot_measure_it_says(where: str) -> None:
    told: list[str] = []
    with tf.distribute.MirroredStrategy(["cpu:0"]).scope() if where == "strategy" else tf.name_scope(""):
        model = small_model(steps_per_execution=1 if where == "strategy" else 3)
    history = model.fit(
        quick_input(6), epochs=3, shuffle=False, verbose=0, callbacks=[tb.InputMonitor(tell=told.append)]
    )
    assert "input_wait" not in history.history and len(history.history["loss"]) == 3
    assert told == ["Input: the wait for it is only measured with steps_per_execution=1, on one device."]


@pytest.mark.parametrize(("epochs", "sentences"), [(1, 1), (2, 1), (3, 2)])
def test_advice_comes_when_there_is_another(monkeypatch: pytest.MonkeyPatch, epochs: int, sentences: int) -> None:
    """After the second epoch at the soonest, unless training ends before."""
    monkeypatch.setattr(
        input_monitor, "advice", lambda found, *rest: input_advice.Advice(str(found.epoch), str(found.epoch))
    )
    told: list[str] = []
    monitor = tb.InputMonitor(tell=told.append)
    small_model().fit(quick_input(3), epochs=epochs, shuffle=False, verbose=0, callbacks=[monitor])
    assert told == [str(epoch) for epoch in range(epochs)][-sentences:]


def test_what_it_costs_can_be_measured() -> None:
    found = monitor_overhead.measure(steps=3, rounds=2)
    assert len(found.plain) == len(found.watched) == len(found.added) == 2
    told = monitor_overhead.text(monitor_overhead.Overhead([0.5, 1.0, 0.5], [0.6, 1.2, 0.6]))
    assert told.startswith("0.500 ms a step without InputMonitor, 0.600 ms with it: it adds 0.100 ms (0.100 to 0.200)")
    assert told.endswith("20% of this tiny step; 1.00% of a step of 10 ms, 0.10% of a step of 100 ms")


def test_our_data_sets(tfds_folder: Path, engine: Any) -> None:
    recipe = dp.crop_train(32, "uint8")
    train = tb.from_tfds(tfds_folder, split="train", recipe=recipe, batch_size=16, seed=0, engine=engine)
    told: list[str] = []
    model = keras.Sequential([keras.Input((32, 32, 3)), tb.Preprocess(recipe), keras.layers.Flatten(),
                              keras.layers.Dense(10)])  # fmt: skip
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    monitor = tb.InputMonitor(train, tell=told.append)
    history = model.fit(train, epochs=3, shuffle=False, verbose=0, callbacks=[monitor]).history
    assert train.epoch == 3
    assert all(0 < epoch.input_wait < 1 and epoch.cpu_ms_per_image > 0 for epoch in monitor.epochs)
    assert monitor.input_wait == pytest.approx(float(np.median(history["input_wait"][1:])))
    assert len(told) <= 2 and all("the model waits for it" in sentence for sentence in told)


EPOCH = EpochInput(
    epoch=1, input_wait=0.4, images_per_second=100, cpu_ms_per_image=1, cpu_cores=1.0, opening=0, seconds=10
)  # on four cores, a quarter busy


class TestAdvice:
    @pytest.fixture(autouse=True)
    def _four_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(input_advice, "available_cores", lambda: 4)

    @pytest.mark.parametrize(
        ("dtype", "options", "cores", "accelerated", "words"),
        [
            ("float32", {}, 1, False, 'dtype="uint8"'),
            ("uint8", {"engine": "tfdata"}, 1, False, 'engine="dali"'),
            ("uint8", {"engine": "dali", "num_threads": 1}, 1, False, "num_threads=4, not 1"),
            ("uint8", {"engine": "dali", "num_threads": 4}, 3.9, False, "all cores are busy"),
            ("uint8", {"engine": "dali", "num_threads": 4}, 1, False, "75% idle, so it waits for storage"),
            ("uint8", {"engine": "dali", "device": "cpu"}, 1, True, "let the GPU decode"),
        ],
    )
    def test_names_the_setting(
        self, tfds_folder: Path, dtype: Any, options: Any, cores: float, accelerated: bool, words: str
    ) -> None:
        ds = tb.from_tfds(tfds_folder, split="train", recipe=dp.crop_train(32, dtype), batch_size=16, seed=0, **options)
        sentence = input_advice.advice(replace(EPOCH, cpu_cores=cores), ds, accelerated).sentence
        assert sentence.startswith("Input: the model waits for it 40% of the time; ")
        assert words in sentence and sentence.count(".") <= 3 and sentence.endswith(".")
        assert "prefetch" not in sentence  # ours fetches ahead by itself

    def test_of_a_few_steps(self, photographs: list[Path]) -> None:
        """The storage is not to blame."""
        ds = tb.from_tfrecords(
            photographs, recipe=dp.crop_train(32, "uint8"), batch_size=8, num_threads=4, engine="dali"
        )
        sentence = input_advice.advice(EPOCH, ds, False).sentence
        assert "with 6 steps an epoch most of that is for the first batch" in sentence and "storage" not in sentence

    def test_of_other_data(self) -> None:
        assert "prefetch" in input_advice.advice(EPOCH, None, False).sentence
        assert "all cores are busy" in input_advice.advice(replace(EPOCH, cpu_cores=4.0), None, False).sentence

    def test_nothing_where_the_wait_is_small(self) -> None:
        assert input_advice.advice(replace(EPOCH, input_wait=0.02), None, False).sentence == ""
