"""What users feel: how much of a training step is waiting for input.

The share is 1 − t_cached / t_real: the step's time with one batch that is there already, over the step's time with the
pipeline. It is what TensorBoard's profiler calls input-bound.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from tf_bridge.measure import Stream


def input_bound(cached: float, real: float) -> float:
    """The share of the real step, 0 to 1; one that is no longer than the cached step waits for nothing."""
    return max(0.0, 1 - cached / real)


def simulated(
    dataset: Iterable[Any],
    busy: float,
    *,
    warm_up: float,
    seconds: float,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """A stand-in accelerator: it takes its time over a batch and no CPU, then asks for the next batch.

    Args:
        dataset: gives an epoch each time it is iterated.
        busy: seconds it takes over a batch.
        warm_up: seconds that do not count.
        seconds: seconds that do, at least.
        now: the time; a test's in a test.
        sleep: as `time.sleep`.
    """
    # Before the pipeline runs, which would take the CPU from it. A sleep takes a little longer than it is told.
    cached = _mean(lambda: sleep(busy), 0.5, now)
    stream = Stream(dataset)

    def step() -> None:
        stream.pull()
        sleep(busy)

    step()
    _mean(step, warm_up, now)
    real = _mean(step, seconds, now)
    return {
        "simulated": True,
        "step_ms": 1000 * real,
        "cached_step_ms": 1000 * cached,
        "input_bound": input_bound(cached, real),
    }


def _mean(step: Callable[[], None], seconds: float, now: Callable[[], float]) -> float:
    """Seconds a step, over as many steps as it takes."""
    start, steps = now(), 0
    while not steps or now() - start < seconds:
        step()
        steps += 1
    return (now() - start) / steps
