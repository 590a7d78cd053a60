"""A line of the doctor's report, and the commands that mend things."""

import importlib.metadata
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

Status = Literal["ok", "warning", "broken"]
Answers = Mapping[str, Mapping[str, Any]]

DISTRIBUTION = "dali-tf-bridge"
DALI, PLUGIN = "nvidia-dali-cuda120", "nvidia-dali-tf-plugin-cuda120"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was looked at.
        status: "ok", "warning" (works, or can do without) or "broken".
        detail: what was found, in one line.
        fix: the command, or the thing to do, that mends it; None where there is nothing to mend.
    """

    name: str
    status: Status
    detail: str
    fix: str | None = None


def install(*requirements: str, flags: str = "") -> str:
    """The command that installs into this very Python: environments made by uv have no pip."""
    python = shlex.quote(sys.executable)
    wanted = " ".join(shlex.quote(requirement) for requirement in requirements)
    tool = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return " ".join(part for part in (tool, flags, wanted) if part)


def requirement(name: str) -> str:
    """What this project asks for, such as `tensorflow<2.22,>=2.20`; the name alone where it is not installed."""
    return next((line for line in requirements() if re.split(r"[<>=!~\[ ]", line)[0] == name), name)


def requirements() -> list[str]:
    """All that this project asks for, extras apart; nothing where it is not installed."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [line.split(";")[0].strip() for line in lines if "extra ==" not in line]


def again(requirement: str) -> str:
    """The command that installs anew what is there and broken, and nothing besides."""
    return install(requirement, flags=f"{_reinstall()} --no-deps")


def _reinstall() -> str:
    return "--force-reinstall --no-cache-dir" if find_spec("pip") else "--reinstall --no-cache"


def install_plugin() -> str:
    """The command that compiles the plugin against the TensorFlow and DALI that are there."""
    flags = f"--no-build-isolation --no-deps {_reinstall()}"
    return f"{install('setuptools<81', 'wheel', 'packaging')} && {install(requirement(PLUGIN), flags=flags)}"
