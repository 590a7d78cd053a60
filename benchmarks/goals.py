"""What the pipelines are to reach, as ratios within one run, and what they reached."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.rounds import Spread, ratio, spread

COLUMNS = ("goal", "reached", "target", "")
SPEED, CPU = "images_per_second", "cpu_ms_per_image"
_NAMES = {SPEED: "images/s", CPU: "CPU ms/image"}


class Goal(NamedTuple):
    """Ours over another's, in one figure.

    Attributes:
        recipe: of both.
        dtype: ours.
        figure: what is compared.
        other: the other pipeline.
        other_dtype: its dtype.
        least: the ratio to reach; None if it is a limit from above.
        most: the ratio not to exceed.
    """

    recipe: str
    dtype: str
    figure: str
    other: str
    other_dtype: str
    least: float | None = None
    most: float | None = None

    def reached(self, found: float) -> bool:
        """Whether the ratio will do."""
        return (self.least is None or found >= self.least) and (self.most is None or found <= self.most)


GOALS = (
    Goal("crop_train", "uint8", SPEED, "question", "float32", least=2.5),
    Goal("crop_train", "uint8", CPU, "question", "float32", most=0.42),
    Goal("crop_train", "uint8", SPEED, "tuned", "uint8", least=1.15),
    Goal("crop_train", "uint8", SPEED, "limit_decode", "uint8", least=0.95),
    Goal("crop_train", "float32", SPEED, "question", "float32", least=1.5),
    Goal("crop_train", "float32", SPEED, "tuned", "float32", least=1.4),
    Goal("imagenet_train", "uint8", SPEED, "tuned", "uint8", least=1.0),
    Goal("imagenet_train", "float32", SPEED, "tuned", "float32", least=1.0),
)
FIRST_BATCH = 0.5  # seconds after tuned tf.data's, at most
INDEX = 20  # times as fast as NVIDIA's tfrecord2idx, at least, the shard being in memory


def lines(rows: Sequence[Any]) -> list[tuple[str, ...]]:
    """A line of `COLUMNS` for each goal that the rows can tell of. Ours is the engine that `auto` takes."""
    found = [line for goal in GOALS if (line := _line(goal, rows))]
    return found + [line for dtype in ("uint8", "float32") if (line := _first_batch(dtype, rows))]


def _line(goal: Goal, rows: Sequence[Any]) -> tuple[str, ...] | None:
    mine, theirs = _ours(rows, goal.recipe, goal.dtype), _find(rows, goal.recipe, goal.other_dtype, goal.other)
    value = ratio(mine, theirs, goal.figure) if mine and theirs else None
    if value is None or mine is None:
        return None
    name = f"{goal.recipe} {goal.dtype}, {mine['name']}: {_NAMES[goal.figure]} over {goal.other}'s {goal.other_dtype}"
    target = f"≥ {goal.least}" if goal.most is None else f"≤ {goal.most}"
    return name, _figure(value), target, _verdict(goal.reached(value.median))


def _first_batch(dtype: str, rows: Sequence[Any]) -> tuple[str, ...] | None:
    mine, theirs = _ours(rows, "crop_train", dtype), _find(rows, "crop_train", dtype, "tuned")
    if not mine or not theirs:
        return None
    key = "first_batch_seconds"
    later = Spread.of([a[key] - b[key] for a, b in zip(mine["rounds"], theirs["rounds"], strict=False)])
    name = f"crop_train {dtype}, {mine['name']}: seconds to the first batch beyond tuned's"
    return name, _figure(later), f"≤ {FIRST_BATCH}", _verdict(later.median <= FIRST_BATCH)


def index(rows: Sequence[Any]) -> list[tuple[str, ...]]:
    """The line of the scan's goal, from the rows of the curve "index"."""
    found = [value for row in rows if (value := spread(row, "times_faster_warm"))]
    name = "scan of a shard in memory: times as fast as tfrecord2idx"
    return [(name, _figure(value), f"≥ {INDEX}", _verdict(value.median >= INDEX)) for value in found]


def _figure(value: Spread) -> str:
    return f"{value.median:.2f} ({value.low:.2f}-{value.high:.2f})"


def _verdict(reached: bool) -> str:
    return "reached" if reached else "not reached"


def _find(rows: Sequence[Any], recipe: str, dtype: str, pipeline: str) -> Any | None:
    return next(iter(_all(rows, recipe, dtype, pipeline)), None)


def _all(rows: Sequence[Any], recipe: str, dtype: str, pipeline: str) -> list[Any]:
    wanted = {"recipe": recipe, "dtype": dtype, "pipeline": pipeline}
    return [row for row in rows if row["rounds"] and wanted.items() <= row["case"].items()]


def _ours(rows: Sequence[Any], recipe: str, dtype: str) -> Any | None:
    """Our row with the engine and device of `auto`."""
    return next((row for row in _all(rows, recipe, dtype, "ours") if row["rounds"][0].get("auto")), None)
