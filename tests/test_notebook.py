"""The before-and-after notebook: what is committed is whole, and it runs."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

PATH = Path(__file__).parent.parent / "benchmarks" / "before_and_after.ipynb"


@pytest.fixture(scope="module")
def notebook() -> Any:
    return nbformat.read(PATH, as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def python(cell: Any) -> str:
    """The cell's source, without the commands that only Colab runs."""
    return re.sub(r"^( *)%.*", r"\1pass", cell.source, flags=re.MULTILINE)


def test_what_is_committed_is_a_whole_run(notebook: Any) -> None:
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    assert PATH.stat().st_size < 200_000


def test_it_is_python_and_names_what_we_export(notebook: Any) -> None:
    import dali_pipe as dp
    import tf_bridge as tb

    source = "\n".join(python(cell) for cell in code(notebook))
    used = [
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("dp", "tb")
    ]
    assert {("tb", "from_tfds"), ("tb", "InputMonitor"), ("dp", "crop_train")} <= set(used)
    for package, name in used:
        assert name in {"dp": dp, "tb": tb}[package].__all__


def test_every_cell_runs_on_a_small_scale(
    notebook: Any,
    tfds_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, on small images; the stand-in takes no time worth speaking of."""
    monkeypatch.setattr("tf_bridge.sample_data.prepare", lambda folder: tfds_folder)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    small = {"SIZE": 32, "BATCH": 16, "STEPS": 3}
    names: dict[str, Any] = {}
    for cell in code(notebook):
        exec(compile(python(cell), cell.id, "exec"), names)
        names |= {name: value for name, value in small.items() if name in names}
    names["plt"].close("all")
    assert {name: len(epochs) for name, epochs in names["found"].items()} == {
        "before": 2,
        "after": 2,
        "after, uint8": 2,
    }
    assert all(0 <= epoch.input_wait <= 1 for epochs in names["found"].values() for epoch in epochs)
    assert capsys.readouterr().out.count("ms CPU an image") == 3
    assert list((tmp_path / "before_and_after").glob("plugins/profile/*/*.xplane.pb"))


def test_in_colab_it_asks_for_the_repository(notebook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    with pytest.raises(ValueError, match="`REPOSITORY` must be the address"):
        exec(compile(python(code(notebook)[0]), "<cell>", "exec"), {})


@pytest.mark.slow
def test_it_runs(notebook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer steps; the figures are for quiet machines to tell."""
    from nbclient import NotebookClient

    monkeypatch.setenv("NOTEBOOK_STEPS", "6")
    for cell in code(notebook):
        cell.outputs = []
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(PATH.parent)}}).execute()
    last = "".join(output.get("text", "") for output in code(notebook)[-1].outputs)
    assert last.count("images/s") == 3
