"""A small TFDS data set, so that our reading can be held against TFDS's own."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tests import support

EXAMPLES = {"train": 203, "validation": 37}
SHARDS = 4


class TinyPhotos(tfds.core.GeneratorBasedBuilder):
    """Photographs of many sizes; `id` numbers them."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(encoding_format="jpeg"),
                    "label": tfds.features.ClassLabel(num_classes=10),
                    "id": tfds.features.Scalar(dtype=np.int64),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {split: self._generate_examples(1000 * k, n) for k, (split, n) in enumerate(EXAMPLES.items())}

    def _generate_examples(self, first: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for key in range(first, first + count):
            image = support.photograph(key, 50 + 13 * key % 60, 50 + 17 * key % 80)
            yield key, {"image": io.BytesIO(image), "label": key % 10, "id": key}


def prepare(data_dir: Path) -> Path:
    builder = TinyPhotos(data_dir=data_dir)
    config = tfds.download.DownloadConfig(num_shards=SHARDS, compute_stats=tfds.download.ComputeStatsMode.SKIP)
    builder.download_and_prepare(download_config=config)
    return Path(builder.data_dir)
