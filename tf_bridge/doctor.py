"""`dali-tf doctor`: what is installed, whether it works together, and the command that mends what does not.

Each library is asked in a process of its own (`doctor_probe.py`): one that crashes or hangs is a line of the report.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from tf_bridge import doctor_probe
from tf_bridge.doctor_checks import checks
from tf_bridge.doctor_line import Answers, Check, Status

TIMEOUT = 120.0  # seconds: the first import of TensorFlow from a network drive takes a minute
_PROBE = Path(__file__).with_name("doctor_probe.py")
_AT_ONCE = 2  # probes that load TensorFlow need half a gigabyte each
_MARKS: Mapping[Status, str] = {"ok": "✓", "warning": "!", "broken": "✗"}
_ASCII: Mapping[Status, str] = {"ok": "+", "warning": "!", "broken": "x"}
_COLORS: Mapping[Status, str] = {"ok": "32", "warning": "33", "broken": "31"}
_GREY, _BOLD = "2", "1"


def run(arguments: argparse.Namespace) -> int:
    """Look, and print as the arguments say; returns the exit code: 1 if something is broken."""
    found = checks(ask(doctor_probe.PROBES))
    broken = [check for check in found if check.status == "broken"]
    if arguments.json:
        print(json.dumps({"ok": not broken, "checks": [asdict(check) for check in found]}, indent=2))
    else:
        print(text(found, sys.stdout))
    return 1 if broken else 0


def ask(names: Iterable[str]) -> Answers:
    """What each probe answers; `{"error": …}` where it failed, crashed or took too long."""
    names, running, over = list(names), set[subprocess.Popen[str]](), threading.Event()
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        answers = pool.map(lambda name: _answer(name, running, over), names)
        return dict(zip(names, _progress(answers, names), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        over.set()
        for process in running.copy():  # after Ctrl-C: nobody waits for them any more
            process.kill()


def _progress(answers: Iterable[dict[str, Any]], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    try:
        from tqdm import tqdm
    except ImportError:  # which is a line of the report
        yield from answers
    else:
        yield from tqdm(answers, "Looking", len(names), leave=False, disable=None, bar_format="{l_bar}{bar}")


def _answer(name: str, running: set["subprocess.Popen[str]"], over: threading.Event) -> dict[str, Any]:
    command = [sys.executable, "-P", os.fspath(_PROBE), name]  # -P: this folder's modules are nobody else's
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        running.add(process)
        if over.is_set():  # while it was being started
            process.kill()
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"error": f"did not load within {TIMEOUT:g} s", "missing": False}
        finally:
            running.discard(process)
    for line in reversed(out.splitlines()):
        if line.startswith(doctor_probe.MARK):
            return dict(json.loads(line.removeprefix(doctor_probe.MARK)))
    return {"error": _end(process.returncode, err), "missing": False}


def _end(code: int, told: str) -> str:
    """How a process ended that gave no answer."""
    last = (told.strip().splitlines() or [""])[-1].strip()[:200]
    how = f"crashed while loading ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
    return f"{how}: {last}" if last else how


def text(found: Iterable[Check], stream: TextIO) -> str:
    """A line for each check, what mends it below, and a line that sums up."""
    found, paint, marks = list(found), _painter(stream), _marks(stream)
    width = max(len(check.name) for check in found)
    lines = []
    for check in found:
        status = paint(f"{marks[check.status]} {check.status:<7}", _COLORS[check.status])
        lines.append(f"{status}  {check.name:<{width}}  {check.detail}")
        if check.fix:
            lines.append(f"{' ' * (width + 13)}{paint('mend:', _GREY)} {paint(check.fix, _BOLD)}")
    return "\n".join([*lines, "", _verdict(found)])


def _verdict(found: list[Check]) -> str:
    count = {status: sum(check.status == status for check in found) for status in _MARKS}
    if not (count["warning"] or count["broken"]):
        return "All is well."
    parts = [f"{n} {word}" for n, word in ((count["broken"], "broken"), (count["warning"], _plural(count))) if n]
    return f"{' and '.join(parts)}; {count['ok']} ok. For a bug report: dali-tf doctor --json"


def _plural(count: Mapping[Status, int]) -> str:
    return "warning" if count["warning"] == 1 else "warnings"


def _marks(stream: TextIO) -> Mapping[Status, str]:
    try:
        "".join(_MARKS.values()).encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return _ASCII
    return _MARKS


class _Painter:
    """Colours words, or leaves them as they are."""

    def __init__(self, on: bool):
        self._on = on

    def __call__(self, words: str, code: str) -> str:
        return f"\033[{code}m{words}\033[0m" if self._on else words


def _painter(stream: TextIO) -> _Painter:
    """Colours on a terminal only, and none where NO_COLOR is set to anything (https://no-color.org)."""
    return _Painter(stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")
