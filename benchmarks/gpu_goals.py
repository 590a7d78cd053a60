"""What a GPU is to bring, and whether the cases of `gpu_check` show that it does."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu_cases import DALI_ALONE, DECODER, FIT, NVJPEG, OURS, TUNED, Check

CPU, SPEED = "cpu_ms_per_image", "images_per_second"
BATCH, WIDTH = 256, 64  # of the ResNet-18 whose share is a goal
Cases = Sequence[Mapping[str, Any]]


class Verdict(NamedTuple):
    """A goal and what became of it.

    Attributes:
        goal: what is compared.
        target: the least or the most it may be.
        found: what it is; None where it cannot be told.
        verdict: "reached", "not reached", or "cannot tell: " and why.
    """

    goal: str
    target: str
    found: float | None
    verdict: str


def verdicts(cases: Cases) -> list[Verdict]:
    """A verdict on each goal, from the cases as `gpu_check` keeps them."""
    return [_host_cpu(cases), _input_bound(cases), _decoder(cases), _parity(cases)]


def _host_cpu(cases: Cases) -> Verdict:
    mine = OURS if _figure(cases, OURS, CPU) else DALI_ALONE  # without TensorFlow, what its bridge adds is not in it
    ours, tuned = _figure(cases, mine, CPU), _figure(cases, TUNED, CPU)
    goal = f"host CPU ms per image, {mine.name} ({mine.kind}) over {TUNED.name}"
    return _at_most(goal, 0.1, ours / tuned if ours and tuned else _lacking(cases, mine, TUNED))


def _input_bound(cases: Cases) -> Verdict:
    found: float | str | None = _figure(cases, FIT, "input_bound")
    if (_figure(cases, FIT, "batch_size"), _figure(cases, FIT, "width")) != (BATCH, WIDTH) and found is not None:
        found = f"it ran with other than batches of {BATCH} and width {WIDTH}"
    goal = f"input-bound share of {FIT.name}, batches of {BATCH}"
    return _at_most(goal, 0.02, _lacking(cases, FIT) if found is None else found)


def _decoder(cases: Cases) -> Verdict:
    """The limit is the fastest decoder that was measured."""
    ours = _figure(cases, DALI_ALONE, SPEED)
    limits = [limit for check in (DECODER, NVJPEG) if (limit := _figure(cases, check, SPEED))]
    goal = f"images/s, {DALI_ALONE.name} over nvJPEG alone"
    return _at_least(goal, 0.9, ours / max(limits) if ours and limits else _lacking(cases, DALI_ALONE, DECODER))


def _parity(cases: Cases) -> Verdict:
    states = [case["status"] for case in cases if case["kind"] == "parity"]
    ran = [state for state in states if state != "skipped"]
    share: float | str = sum(state == "ok" for state in ran) / len(ran) if ran else "no parity case ran"
    if share == 1 and len(ran) < len(states):
        share = f"{len(states) - len(ran)} of {len(states)} parity cases were skipped"
    return _at_least("parity cases within their bounds, share", 1.0, share)


def _figure(cases: Cases, check: Check, name: str) -> float | None:
    """A figure of a case; None if it did not run, or failed."""
    wanted = (check.kind, check.name, "ok")
    return next((case[name] for case in cases if (case["kind"], case["name"], case["status"]) == wanted), None)


def _lacking(cases: Cases, *checks: Check) -> str:
    """Why there is no figure of all of these."""
    for check in checks:
        case = next((case for case in cases if (case["kind"], case["name"]) == (check.kind, check.name)), None)
        if case is None:
            return f"{check.name} was not asked for"
        if case["status"] != "ok":
            return f"{check.name} {case['status']}: {case['reason']}"
    return "a figure is zero"


def _at_most(goal: str, most: float, found: float | str) -> Verdict:
    return _verdict(goal, f"≤ {most}", found, isinstance(found, float) and found <= most)


def _at_least(goal: str, least: float, found: float | str) -> Verdict:
    return _verdict(goal, f"≥ {least}", found, isinstance(found, float) and found >= least)


def _verdict(goal: str, target: str, found: float | str, reached: bool) -> Verdict:
    if isinstance(found, str):
        return Verdict(goal, target, None, f"cannot tell: {found}")
    return Verdict(goal, target, found, "reached" if reached else "not reached")
