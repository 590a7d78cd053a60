"""What is built installs, with DALI and without, here and on other systems, and is typed for those who use it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

import pytest

from tests import support

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CLIENT = """\
import dali_pipe as dp
import tf_bridge as tb

train = tb.from_tfds("name", split="train", recipe=dp.crop_train(224), batch_size=256, seed=0)
steps: int = len(train)
where: str = train.device
size: tuple[int, ...] = dp.crop_train(224).output_shape
"""
MISTAKES = ('tb.from_tfds("name", recipe=dp.crop_train(224), batch_size="256")', "dp.RandomCrop(size=None)")
TRAIN = """\
import sys
import dali_pipe as dp
import tf_bridge as tb

dataset = tb.from_tfrecords(sys.argv[1], recipe=dp.crop_train(16, "uint8"), batch_size=4, seed=0)
print(dataset.engine, dataset.device, [images.shape[0] for images, _ in dataset])
"""


def uv(*arguments: str | Path) -> str:
    """What uv prints, run outside any project."""
    done = subprocess.run(["uv", *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_only_linux_has_is_asked_for_there_only() -> None:
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    nvidia = [line for line in PROJECT["dependencies"] + extras if re.match(r"nvidia|tensorflow\[and-cuda\]", line)]
    assert len(nvidia) >= 4
    assert all(line.endswith("; sys_platform == 'linux'") for line in nvidia), nvidia


def test_dali_and_its_plugin_are_pinned_alike() -> None:
    pins = {line.split(";")[0].split("==")[1] for line in PROJECT["dependencies"] if line.startswith("nvidia-dali")}
    assert len(pins) == 1


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source distribution and the wheel that was built from it."""
    if shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--out-dir", folder, ROOT)
    return folder


def wheel(folder: Path) -> Path:
    (found,) = folder.glob("*.whl")
    return found


def requirements(folder: Path) -> list[str]:
    """The wheel's own, extras apart."""
    with zipfile.ZipFile(wheel(folder)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    return [line for line in lines if "extra ==" not in line]


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as archive:
        names = set(archive.namelist())
    sources = {f"{p}/{file.name}" for p in ("dali_pipe", "tf_bridge") for file in (ROOT / p).glob("*.py")}
    assert sources <= names and {"dali_pipe/py.typed", "tf_bridge/py.typed"} <= names
    assert {name.split("/")[0] for name in names} == {"dali_pipe", "tf_bridge", "dali_tf_bridge-0.1.0.dist-info"}


@pytest.mark.slow
def test_the_source_distribution_has_tests_and_no_leftovers(built: Path) -> None:
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "tests/test_packaging.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "uv.lock", "runs", "dist"))]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["macos", "windows", "linux"])
@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_other_systems_resolve(system: str, python: str) -> None:
    """TensorFlow has no wheels for Macs with Intel processors any more; `macos` is the others."""
    pins = uv(
        "pip", "compile", "--quiet", "--python-platform", system, "--python-version", python, ROOT / "pyproject.toml"
    )
    names = set(re.findall(r"^([\w.-]+)==", pins, re.MULTILINE))
    assert {"tensorflow", "scikit-image", "matplotlib"} <= names
    assert ("nvidia-dali-cuda120" in names) == (system == "linux")


def environment(folder: Path, *steps: Iterable[str | Path]) -> Path:
    """The Python of a new environment, after each step of installing."""
    uv("venv", "--quiet", "--python", f"{sys.version_info[0]}.{sys.version_info[1]}", folder)
    for step in steps:
        uv("pip", "install", "--quiet", "--python", folder, *step)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def without_dali(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment as macOS and Windows have it."""
    common = [line for line in requirements(built) if not line.startswith("nvidia")]
    folder = tmp_path_factory.mktemp("without") / "env"
    return environment(folder, common, ["--no-deps", wheel(built)])


def outside(python: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run that Python where nothing of this repository is in reach."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(python), *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd="/", env=keep
    )


@pytest.mark.slow
def test_without_dali_tf_data_does_the_work(without_dali: Path, tmp_path: Path) -> None:
    support.write_shards(tmp_path, [support.photograph(k, 40, 44) for k in range(8)], shards=2)
    done = outside(without_dali, "-c", TRAIN, f"{tmp_path}/*")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "tfdata cpu [4, 4]"
    assert "DALI is not installed, so the tf.data engine does the work" in done.stderr


@pytest.mark.slow
def test_without_dali_the_commands_work(without_dali: Path, tmp_path: Path) -> None:
    support.write_shards(tmp_path, [support.photograph(k, 40, 44) for k in range(8)], shards=2)
    command = without_dali.with_name("dali-tf")
    for name in ("inspect", "preview"):
        done = outside(command, name, f"{tmp_path}/*-of-*", "--size", "16", "--output", tmp_path / f"{name}.png")
        assert done.returncode == 0 and (tmp_path / f"{name}.png").is_file(), done.stderr
    doctor = outside(command, "doctor", "--json")
    lines = {check["name"]: check["status"] for check in json.loads(doctor.stdout)["checks"]}
    assert doctor.returncode == 0
    assert (lines["TensorFlow"], lines["DALI"]) == ("ok", "warning")


@pytest.mark.slow
def test_types_reach_those_who_use_it(without_dali: Path, tmp_path: Path) -> None:
    """A checker that sees only the installed wheel accepts what is right and names what is wrong."""
    (tmp_path / "right.py").write_text(CLIENT)
    (tmp_path / "wrong.py").write_text(CLIENT + "\n".join(MISTAKES) + "\n")
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(without_dali)]
    check += ["--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache"), "--no-error-summary"]
    right = subprocess.run([*check, "right.py"], capture_output=True, text=True, cwd=tmp_path)
    assert right.returncode == 0, right.stdout
    wrong = subprocess.run([*check, "wrong.py"], capture_output=True, text=True, cwd=tmp_path)
    first = len(CLIENT.splitlines()) + 1
    told = {int(line.split(":")[1]) for line in wrong.stdout.splitlines() if ": error: " in line}
    assert told == set(range(first, first + len(MISTAKES))), wrong.stdout


@pytest.mark.slow
def test_with_dali_it_does_the_work(built: Path, tmp_path: Path) -> None:
    """In the order that the README gives: the plugin compiles against the TensorFlow and DALI that are there."""
    support.write_shards(tmp_path / "data", [support.photograph(k, 40, 44) for k in range(8)], shards=2)
    first = [line for line in requirements(built) if not line.startswith("nvidia-dali-tf-plugin")]
    python = environment(
        tmp_path / "env",
        [*first, "setuptools<81", "wheel", "packaging"],
        ["--no-build-isolation", "--no-cache", wheel(built)],
    )
    done = outside(python, "-c", TRAIN, f"{tmp_path}/data/*")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "dali cpu [4, 4]"


@pytest.mark.slow
def test_readme_s_lines_for_pip_bring_what_the_editable_build_needs(tmp_path: Path) -> None:
    """As printed, short of TensorFlow, DALI and what else the project depends on: those are large."""
    block = re.search(r"### With pip\n.*?```bash\n(.*?)```", README, re.DOTALL)
    assert block is not None
    first, second = (shlex.split(line)[1:] for line in block[1].splitlines())
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    small = [word for word in first if not word.startswith(("tensorflow", "nvidia"))]
    for arguments in (small, [*second, "--no-deps"]):
        done = subprocess.run([python, "-m", "pip", *arguments], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
    done = outside(python, "-c", "import tf_bridge; print(tf_bridge.__file__)")
    assert done.stdout.strip() == str(ROOT / "tf_bridge" / "__init__.py"), done.stderr
