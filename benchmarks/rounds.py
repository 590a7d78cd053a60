"""Tasks run in turn, round by round, each in a process of its own: what drifts on the machine drifts for all.

Figures of one round belong together, so ratios are taken within a round and their median over the rounds.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gpu
from benchmarks.case import Case

ROOT = Path(__file__).parent.parent
# Seconds that a case may take beyond the time it is measured for. `fit` may train a ResNet-18 on two cores.
LIMITS = {"speed": 300.0, "simulated": 300.0, "fit": 7200.0, "view": 300.0, "index": 300.0}
Found = dict[str, Any]
Row = dict[str, Any]
Run = Callable[[Mapping[str, Any]], Found]
Tell = Callable[[str], None]


class Spread(NamedTuple):
    """A figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of the rounds' values."""
        return cls(statistics.median(values), min(values), max(values))


def time_limit(task: Mapping[str, Any]) -> float:
    """Seconds after which a task is given up: its own `limit`, or what its measure may take at most."""
    if task.get("limit"):
        return float(task["limit"])
    return float(LIMITS[task["measure"]] + task.get("warm_up", 0.0) + 2 * task.get("seconds", 0.0))


def in_process(task: Mapping[str, Any]) -> Found:
    """What `child.py` finds; a child that fails, or takes too long, gives `{"failed": why}` and stops no other."""
    limit = time_limit(task)
    with gpu.Watch() as watch, _child(task) as child:
        try:
            out, err = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return {
                "failed": f"still running after {limit:g} s, the limit of `{task['measure']}`; `--limit` sets another"
            }
        finally:
            _end(child)
    if child.returncode or not out.strip():
        return {"failed": _why(child.returncode, err)}
    found: Found = json.loads(out.splitlines()[-1])
    return {**found, **watch.within(*found["window"])} if "window" in found else found


def _child(task: Mapping[str, Any]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.child", json.dumps({**task, "began": time.time()})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=ROOT,
        start_new_session=True,
    )


def _end(child: "subprocess.Popen[str]") -> None:
    """The child and whatever workers it leaves behind: they would disturb the next."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _why(code: int, err: str) -> str:
    """A signal is named first: the last line may have nothing to do with it."""
    line = _last_line(err)
    if code < 0:
        return f"ended by {signal.Signals(-code).name}" + (f", after: {line}" if line else "")
    return line or f"exit code {code}, and nothing printed"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def new_row(case: Case, **more: Any) -> Row:
    """A case's row, with nothing measured yet: `{"case": …, "name": …, "rounds": []}`."""
    return {"case": asdict(case), "name": case.name, "rounds": [], **more}


def interleave(
    rows: Sequence[Row], rounds: int, task: Mapping[str, Any], run: Run = in_process, tell: Tell = _to_stderr
) -> None:
    """Add to each row's rounds what was found.

    A case that is skipped or fails is not tried again: its row has the reason instead. Rows fill as rounds end, so
    whoever holds them has what was measured before an interruption.
    """
    for number in range(rounds):
        for row in rows:
            if "skipped" in row or "failed" in row:
                continue
            found = run({**task, "case": row["case"]})
            if reason := {key: why for key, why in found.items() if key in ("skipped", "failed")}:
                row.update(reason)
            else:
                row["rounds"].append(found)
            tell(f"round {number + 1} of {rounds}: {_told(row, found)}")


def _told(row: Mapping[str, Any], found: Found) -> str:
    case = row["case"]
    at = f" at {row['x']}" if "x" in row else ""  # on a curve
    name = f"{case['recipe']} {case['dtype']} {row['name']}{at}"
    for key in ("skipped", "failed"):
        if key in found:
            return f"{name} {key}: {found[key]}"
    return f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in found.items() if isinstance(value, float))}"


def form(value: float) -> str:
    """How a figure of any size is written: three digits, and all that are before the point."""
    return ",.0f" if value >= 100 else ".3g"


def spread(row: Mapping[str, Any], key: str) -> Spread | None:
    """A figure of a row over the rounds; None where it was not measured."""
    values = [found[key] for found in row["rounds"] if found.get(key) is not None]
    return Spread.of(values) if values else None


def ratio(row: Mapping[str, Any], other: Mapping[str, Any], key: str) -> Spread | None:
    """`row`'s figure over `other`'s, within each round."""
    pairs = zip(row["rounds"], other["rounds"], strict=False)
    values = [mine[key] / theirs[key] for mine, theirs in pairs if theirs.get(key)]
    return Spread.of(values) if values else None
