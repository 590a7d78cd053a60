"""README's Python runs as printed, on small data in the places it names."""

import re
from pathlib import Path

import pytest

import dali_pipe as dp
import tf_bridge as tb
from tests import support

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet(
    snippet: str, imagenette: Path, photographs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    for k in range(2):
        payloads = [
            support.example({"image/encoded": support.photograph(k, 60, 50), "image/class/label": 1 + n})
            for n in range(10)
        ]
        support.write_shard(tmp_path / "imagenet" / f"train-{k:05d}-of-00002", payloads)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(imagenette))
    model = tb.resnet18(10, recipe=dp.crop_train(224), width=16)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    small = re.sub(r"batch_size=\d+", "batch_size=4", re.sub(r"epochs=\d+", "epochs=1", snippet))
    exec(compile(small, "README.md", "exec"), {"model": model})


def test_the_two_commands_are_there() -> None:
    commands = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    assert {"uv run dali-tf train", "uv run pytest"} <= set(commands)
    ci = (Path(__file__).parent.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "uv run pytest" in ci
