"""Ctrl-C ends a training, even where Python drops the exception it raises."""

import signal
from typing import Any

import keras
import numpy as np
import pytest

from tf_bridge.interrupt import Interrupt


class LosesIt(keras.callbacks.Callback):
    """Is interrupted where an exception goes nowhere."""

    def __init__(self, at: str):
        super().__init__()
        self.at, self.batches = at, 0

    def _interrupt(self) -> None:
        class Dying:
            def __del__(self) -> None:
                signal.raise_signal(signal.SIGINT)

        Dying()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.batches += 1
        if self.at == "batch" and self.batches == 2:
            self._interrupt()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.at == "end":
            self._interrupt()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("at", "batches"), [("batch", 2), ("end", 4)])
def test_an_interrupt_that_is_lost_ends_fit_all_the_same(at: str, batches: int) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    losing, before = LosesIt(at), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupt() as interrupt:
        model.fit(np.zeros((8, 1)), np.zeros((8, 1)), batch_size=2, verbose=0, callbacks=[losing, interrupt])
    assert losing.batches == batches
    assert signal.getsignal(signal.SIGINT) is before


def test_without_one_nothing_happens() -> None:
    with Interrupt():
        pass


def test_the_step_is_finished_first_and_a_second_one_ends_it_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    began: list[str] = []
    with Interrupt(lambda: began.append("now")) as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert began == ["now"]
        assert "Ctrl-C again stops as soon as" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert began == ["now"]
        with pytest.raises(KeyboardInterrupt):
            interrupt.on_train_batch_begin(0)
        interrupt._came = False  # so that the test's own end is one


def test_where_the_signal_is_ignored_it_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
