"""The before-and-after notebook: what is committed is whole, and it runs."""

import ast
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

    source = "\n".join(cell.source for cell in code(notebook)).replace("    %pip", "    # %pip")
    used = [
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("dp", "tb")
    ]
    assert {("tb", "from_tfds"), ("tb", "InputMonitor"), ("dp", "crop_train")} <= set(used)
    for package, name in used:
        assert name in {"dp": dp, "tb": tb}[package].__all__


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
