"""`dali-tf doctor` says what is broken, whatever is broken, and is not taken down by it."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tf_bridge import doctor, doctor_machine, doctor_probe
from tf_bridge.doctor_checks import checks
from tf_bridge.doctor_line import Check, install, requirement

SOUND: dict[str, dict[str, Any]] = {
    "tensorflow": {"version": "2.21.0", "keras": "3.15.1", "cuda": True, "gpus": ["NVIDIA H100"]},
    "dali": {"version": "2.4.0", "gpus": 1, "gpu_fault": None},
    "plugin": {"version": "2.4.0", "device": "gpu", "right": True},
    "driver": {"hardware": True, "gpus": ["NVIDIA H100, 550.54, 81559 MiB"]},
    "libraries": {group: {name: f"/x/{name}" for name in names} for group, names in doctor_probe.LIBRARIES.items()},
}
MISSING = {"error": "No module named 'it'", "missing": True}


def found(**changed: Mapping[str, Any]) -> dict[str, Check]:
    """The report's lines by name, where all is well but what is given."""
    return {check.name: check for check in checks({**SOUND, **changed})}


def run(tmp_path: Path, *arguments: str, **files: str) -> "subprocess.CompletedProcess[str]":
    """The command, with modules of these names in the way of the real ones."""
    for name, source in files.items():
        (tmp_path / f"{name}.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DALI_TF_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "tf_bridge.cli", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_a_library_that_aborts_is_a_line_of_the_report(tmp_path: Path) -> None:
    done = run(tmp_path, tensorflow="import os; print('noise'); os.abort()")
    assert done.returncode == 1 and done.stderr == ""
    lines = done.stdout.splitlines()
    (place,) = (k for k, line in enumerate(lines) if "TensorFlow " in line and "broken" in line)
    assert "crashed while loading (SIGABRT)" in lines[place] and f"it is {tmp_path}/tensorflow.py" in lines[place]
    assert sys.executable in lines[place + 1] and "'tensorflow<2.22,>=2.20'" in lines[place + 1]
    assert "DALI             2.4.0" in done.stdout and "\033" not in done.stdout
    assert lines[-1].startswith("1 broken and 2 warnings")


def test_nothing_is_installed(tmp_path: Path) -> None:
    """Neither TensorFlow nor DALI, numpy or tqdm: the report says so, and its commands would install them."""
    absent = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'tensorflow', 'keras', 'nvidia', 'numpy', 'tqdm'}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    done = run(tmp_path, "--json", sitecustomize=absent)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    lines = {check["name"]: check for check in report["checks"]}
    assert not report["ok"]
    assert lines["TensorFlow"]["status"] == "broken" and "No module named 'tensorflow'" in lines["TensorFlow"]["detail"]
    assert lines["DALI"]["status"] == "warning" and "nvidia-dali-cuda120==2.4.0" in lines["DALI"]["fix"]


ABSENT_DALI = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("nvidia.dali"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize("driver", [{"hardware": False, "gpus": []}, SOUND["driver"]], ids=["without", "gpu"])
def test_only_dali_is_missing(driver: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command brings it; its plugin too, where there is a GPU that needs it."""
    (tmp_path / "sitecustomize.py").write_text(ABSENT_DALI)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = found(**doctor.ask(["dali", "plugin"]), driver=driver)
    assert {name for name, check in lines.items() if check.status != "ok"} - MACHINE == {"DALI"}
    fix = str(lines["DALI"].fix)
    assert "nvidia-dali-cuda120==2.4.0" in fix
    assert ("&&" in fix and "nvidia-dali-tf-plugin-cuda120==2.4.0" in fix) == bool(driver["gpus"])


def test_a_library_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorflow.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "TIMEOUT", 0.5)
    assert doctor.ask(["tensorflow"])["tensorflow"]["error"] == "did not load within 0.5 s"


def test_probes_that_need_no_tensorflow() -> None:
    answers = doctor.ask(["dali", "driver", "libraries"])
    assert answers["dali"]["version"] == requirement("nvidia-dali-cuda120").split("==")[1]
    assert set(answers["libraries"]) == {"cuFFT", "NPP"} and "gpus" in answers["driver"]


@pytest.mark.slow
def test_this_installation_is_sound(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    lines = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert lines["TF plugin"]["detail"].startswith("2.4.0, ran a batch on the ")


def test_all_is_well() -> None:
    assert {check.status for name, check in found().items() if name not in MACHINE} == {"ok"}


MACHINE = {"Compiler", "Cache folder", "Free space", "Index files", "CPU cores"}  # as they are where tests run


@pytest.mark.parametrize(
    ("changed", "name", "status", "detail", "fix"),
    [
        ({"tensorflow": MISSING}, "TensorFlow", "broken", "No module", "tensorflow<2.22,>=2.20"),
        ({"tensorflow": SOUND["tensorflow"] | {"version": "2.19.1"}}, "TensorFlow", "broken", "must be", "2.20"),
        ({"dali": MISSING}, "DALI", "warning", "the tf.data engine does the work", "nvidia-dali-cuda120==2.4.0"),
        ({"dali": SOUND["dali"] | {"version": "2.3.0"}}, "DALI", "broken", "2.3.0; must be 2.4.0", "==2.4.0"),
        ({"plugin": MISSING}, "TF plugin", "warning", "not installed", "--no-build-isolation"),
        ({"plugin": SOUND["plugin"] | {"version": "2.3.0"}}, "TF plugin", "broken", "must be alike", "==2.4.0"),
        ({"plugin": SOUND["plugin"] | {"right": False}}, "TF plugin", "broken", "wrong batches", "-plugin-cuda120"),
        (
            {"plugin": {"error": "NotFoundError: /a.so: undefined symbol: _ZN10", "missing": False}},
            "TF plugin", "broken", "compiled against another TensorFlow or DALI", "--no-build-isolation",
        ),
        ({"driver": {"hardware": True, "gpus": []}}, "NVIDIA driver", "broken", "no nvidia-smi", "ubuntu-drivers"),
        (
            {"driver": {"hardware": True, "gpus": [], "fault": "couldn't communicate with the NVIDIA driver"}},
            "NVIDIA driver", "broken", "couldn't communicate", "sudo ubuntu-drivers install",
        ),
        (
            {"driver": {"error": "TimeoutExpired: 20 seconds", "missing": False}},
            "NVIDIA driver", "warning", "TimeoutExpired", "sudo ubuntu-drivers install",
        ),
        (
            {"driver": {"hardware": True, "gpus": ["NVIDIA A100, 525.60.11, 40960 MiB"]}},
            "NVIDIA driver", "broken", "CUDA 12 needs 525.60.13 or newer", "sudo ubuntu-drivers install",
        ),
        ({"tensorflow": SOUND["tensorflow"] | {"gpus": []}}, "GPU, TensorFlow", "broken", "sees none", "[and-cuda]"),
        ({"dali": SOUND["dali"] | {"gpus": 0}}, "GPU, DALI", "broken", "sees none", "ubuntu-drivers"),
        (
            {"libraries": SOUND["libraries"] | {"NPP": {"libnppc.so.12": None}}},
            "NPP", "broken", "libnppc.so.12 not found", "nvidia-npp-cu12",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_has_a_line_and_a_command(
    changed: dict[str, dict[str, Any]], name: str, status: str, detail: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ubuntu(monkeypatch)
    check = found(**changed)[name]
    assert (check.status, detail in check.detail) == (status, True), check
    assert check.fix is not None and fix in check.fix


def on_ubuntu(monkeypatch: pytest.MonkeyPatch, container: bool = False) -> None:
    monkeypatch.setattr(doctor_machine, "in_container", lambda: container)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "pop", "ID_LIKE": "ubuntu debian"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_driver_that_is_new_enough() -> None:
    for version in ("525.60.13", "550.54", "600"):
        driver = {"hardware": True, "gpus": [f"NVIDIA H100, {version}, 81559 MiB"]}
        assert found(driver=driver)["NVIDIA driver"].status == "ok"


def test_in_a_container_the_fix_is_an_option_of_docker_run(monkeypatch: pytest.MonkeyPatch) -> None:
    on_ubuntu(monkeypatch, container=True)
    assert "`--gpus all`" in str(found(driver={"hardware": True, "gpus": []})["NVIDIA driver"].fix)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute" in str(found(dali=SOUND["dali"] | {"gpus": 0})["GPU, DALI"].fix)


def test_on_another_system_the_driver_is_on_nvidia_s_page(monkeypatch: pytest.MonkeyPatch) -> None:
    on_ubuntu(monkeypatch)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "fedora"})
    assert "https://www.nvidia.com/drivers" in str(found(driver={"hardware": True, "gpus": []})["NVIDIA driver"].fix)


def test_gpus_that_the_environment_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    lines = found(dali=SOUND["dali"] | {"gpus": 0}, tensorflow=SOUND["tensorflow"] | {"gpus": []})
    for name in ("GPU, DALI", "GPU, TensorFlow"):
        assert lines[name].fix == "unset CUDA_VISIBLE_DEVICES" and "CUDA_VISIBLE_DEVICES=''" in lines[name].detail


def test_without_a_gpu_its_libraries_and_index_files_are_not_missed() -> None:
    without = {"libraries": {group: dict.fromkeys(names) for group, names in doctor_probe.LIBRARIES.items()}}
    lines = found(driver={"hardware": False, "gpus": []}, **without)
    assert {lines[name].status for name in ("cuFFT", "NPP", "NVIDIA driver")} == {"ok"}
    assert "Index files" not in lines


def test_a_compiler_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "strings" else f"/bin/{tool}")
    check = found(plugin=MISSING)["Compiler"]
    assert check.status == "warning" and "cannot be compiled" in check.detail
    assert check.fix == "apt-get install -y binutils"


def test_folders_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DALI_TF_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(doctor_machine, "cgroup_quota", lambda: 1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 100 << 20}))
    lines = found()
    assert lines["Cache folder"].status == "warning" and "DALI_TF_CACHE" in str(lines["Cache folder"].fix)
    assert lines["CPU cores"].status == "warning" and lines["CPU cores"].fix == "dali-tf train --threads 1"
    assert lines["Free space"].status == "warning" and "0.1 GB" in lines["Free space"].detail
    assert lines["Index files"].status == "warning"


CHECKS = [
    Check(name="One", status="ok", detail="fine"),
    Check(name="The second", status="broken", detail="not fine", fix="mend it"),
]


def test_lines_are_aligned() -> None:
    lines = doctor.text(CHECKS, io.StringIO()).splitlines()
    assert lines[0].index("fine") == lines[1].index("not fine")
    assert lines[2].strip() == "mend: mend it"
    assert lines[-1] == "1 broken; 1 ok. For a bug report: dali-tf doctor --json"


def test_colours_are_for_terminals_and_honour_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[31m" in doctor.text(CHECKS, support.Terminal())
    assert "\033" not in doctor.text(CHECKS, io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in doctor.text(CHECKS, support.Terminal())


def test_a_terminal_without_check_marks_gets_ascii() -> None:
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    assert doctor.text(CHECKS, latin).isascii()


def test_commands_are_for_this_python() -> None:
    assert sys.executable in install("numpy>=2")
    assert install("numpy>=2").endswith("'numpy>=2'")
