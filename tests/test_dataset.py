"""The contract of a dataset, on every engine."""

from pathlib import Path

import dali_pipe as dp
import tf_bridge as tb


def test_training_default_drops_the_partial_batch(tfds_folder: Path, engine: str) -> None:
    ds = tb.from_tfds(tfds_folder, split="train", recipe=dp.crop_train(32), batch_size=16, engine=engine)
    assert sum(len(y) for _, y in ds) == 192
