"""How fast batches come, and what they cost the host: of any iterable that gives an epoch each time it is iterated."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Clock:
    """Time, and what this process and its children have used of the CPUs.

    Living children are seen only where there is `/proc`, and those that have ended are not on Windows.
    """

    def now(self) -> float:
        """Seconds since some moment."""
        return time.perf_counter()

    def cpu(self) -> float:
        """Seconds of CPU, user and system, of this process and of all that descend from it."""
        times = os.times()
        ended = times.children_user + times.children_system
        return time.process_time() + ended + sum(_cpu_seconds(stat) for stat in _descendants().values())

    def memory(self) -> int | None:
        """Bytes of memory of this process and of its living descendants, each at its most; None without `/proc`."""
        return sum(_high_water(pid) for pid in ("self", *map(str, _descendants())))


class Speed(NamedTuple):
    """How one data set ran.

    Attributes:
        images_per_second: over the window.
        cpu_ms_per_image: milliseconds of CPU, user and system, of the process and its children.
        first_batch_seconds: from the call of `iter` to the first batch.
        images: handed out in the window.
        seconds: the window's length.
        epochs: ends of epochs in the window.
        peak_memory_mb: most that the process and its children had, up to the window's end; megabytes of 10⁶ bytes;
            None where the system does not tell.
    """

    images_per_second: float
    cpu_ms_per_image: float
    first_batch_seconds: float
    images: int
    seconds: float
    epochs: int
    peak_memory_mb: float | None


class Stream:
    """A data set's batches, epoch after epoch, as `fit` iterates them.

    Attributes:
        epoch: how many epochs have ended.
        place: how many batches of the running one were given.
    """

    def __init__(self, dataset: Iterable[Any]):
        self._dataset, self._batches = dataset, iter(dataset)
        self.epoch, self.place = 0, 0

    def pull(self) -> Any:
        """The next batch.

        Raises:
            ValueError: the data set is empty.
        """
        batch = next(self._batches, None)
        if batch is None:
            if not self.place:
                raise ValueError("There is nothing to measure: the data set gives no batch.")
            self._batches, self.epoch, self.place = iter(self._dataset), self.epoch + 1, 0
            return self.pull()
        self.place += 1
        return batch


def measure(dataset: Iterable[Any], *, warm_up: float, seconds: float, clock: Clock | None = None) -> Speed:
    """Iterate a data set, epoch after epoch, and see how fast it is.

    The window opens after the warm-up. Where it spans an epoch's end it closes at the place in the epoch where it
    opened, so that short epochs count whole, with what their beginnings and ends cost; at twice `seconds` at the
    latest.

    Args:
        dataset: gives batches `(…, labels)` each time it is iterated.
        warm_up: seconds from the first batch that do not count.
        seconds: the window's length at least.
        clock: the process's, or a test's.

    Raises:
        ValueError: the data set is empty.
    """
    clock = clock or Clock()
    began = clock.now()
    stream = Stream(dataset)
    batch = _settled(stream.pull())
    first = clock.now()
    while clock.now() - first < warm_up:
        batch = stream.pull()
    _settled(batch)

    opened, cpu, place, epoch, images = clock.now(), clock.cpu(), stream.place, stream.epoch, 0
    while not _closed(clock.now() - opened, seconds, stream.place == place or stream.epoch == epoch):
        batch = stream.pull()
        images += int(batch[-1].shape[0])
    _settled(batch)
    elapsed, used, memory = clock.now() - opened, clock.cpu() - cpu, clock.memory()
    return Speed(
        images_per_second=images / elapsed,
        cpu_ms_per_image=1000 * used / images,
        first_batch_seconds=first - began,
        images=images,
        seconds=elapsed,
        epochs=stream.epoch - epoch,
        peak_memory_mb=memory / 1e6 if memory else None,
    )


def _closed(elapsed: float, seconds: float, whole: bool) -> bool:
    return elapsed >= (seconds if whole else 2 * seconds)


def _settled(batch: Any) -> Any:
    """The batch, once its labels are on the host: on a GPU a batch may be handed out before it is there."""
    np.asarray(batch[-1])
    return batch


def _high_water(pid: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _descendants() -> dict[int, list[str]]:
    """The fields of /proc/PID/stat behind the name, of the living processes that descend from this one."""
    stats = {int(path.parent.name): fields for path in Path("/proc").glob("[0-9]*/stat") if (fields := _stat(path))}
    found, family = dict[int, list[str]](), {os.getpid()}
    while more := {pid for pid, fields in stats.items() if int(fields[1]) in family and pid not in family}:
        family |= more
        found.update((pid, stats[pid]) for pid in more)
    return found


def _stat(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()  # a name may hold spaces and brackets
    except OSError:
        return []


def _cpu_seconds(stat: list[str]) -> float:
    """utime, stime and those of the children it has waited for: fields 14 to 17 of proc(5)."""
    return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")
