"""What `tb.InputMonitor` costs a training step.

    python -m benchmarks.monitor_overhead [--steps 2000] [--rounds 7]

The same tiny model is trained on one cached batch, with the monitor and without it in turn, so that what drifts on the
machine drifts for both. What a step costs more with it is the same for any model; the share is of this one, which is
done in no time.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tf_bridge as tb

WARM_UP = 50  # steps


class Overhead(NamedTuple):
    """Milliseconds a step, a pair for each round.

    Attributes:
        plain: without the monitor.
        watched: with it.
    """

    plain: list[float]
    watched: list[float]

    @property
    def added(self) -> list[float]:
        """What the monitor adds in each round, milliseconds a step."""
        return [more - less for less, more in zip(self.plain, self.watched, strict=True)]


def measure(steps: int, rounds: int) -> Overhead:
    """Train with the monitor and without it, in turn.

    Args:
        steps: of each `fit`, whose only epoch is timed whole.
        rounds: pairs of them.
    """
    model = _model()
    found = Overhead([], [])
    for callbacks in ([], [_monitor()]):  # each compiles a step of its own
        _fit(model, WARM_UP, callbacks)
    for _ in range(rounds):
        found.plain.append(_fit(model, steps, []))
        found.watched.append(_fit(model, steps, [_monitor()]))
    return found


def _monitor() -> keras.callbacks.Callback:
    return tb.InputMonitor(tell=None)


def _model() -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def _fit(model: keras.Model, steps: int, callbacks: list[Any]) -> float:
    """Milliseconds a step of one epoch."""
    batch = np.ones((4, 8), np.float32), np.ones((4, 1), np.float32)
    cached = tf.data.Dataset.from_tensors(batch).repeat(steps)
    began = time.perf_counter()
    model.fit(cached, shuffle=False, verbose=0, callbacks=callbacks)
    return 1000 * (time.perf_counter() - began) / steps


def text(found: Overhead) -> str:
    """The medians, and the spread of what is added."""
    plain, added = statistics.median(found.plain), statistics.median(found.added)
    spread = f"{min(found.added):.3f} to {max(found.added):.3f}"
    shares = ", ".join(f"{added / step:.2%} of a step of {step} ms" for step in (10, 100))
    return (
        f"{plain:.3f} ms a step without InputMonitor, {statistics.median(found.watched):.3f} ms with it: it adds "
        f"{added:.3f} ms ({spread}), {added / plain:.0%} of this tiny step; {shares}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitor_overhead", description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="of each fit")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of fits, with and without")
    arguments = parser.parse_args(argv)
    print(text(measure(arguments.steps, arguments.rounds)))


if __name__ == "__main__":
    main()
