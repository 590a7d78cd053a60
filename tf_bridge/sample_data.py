"""The embedded data set: crops of ten photographs that scikit-image ships, written by TFDS in TFDS's own layout.

It stands in for `imagenette/320px` where nothing can be downloaded: real JPEGs of 320 px on the shorter side in
TFRecord shards, ten classes (the class is the photograph), the same bytes on every run.
"""

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image, ImageEnhance
from tqdm import tqdm

# Photographs only, and only files inside scikit-image's wheel: no download.
PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "camera": "camera.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "grass": "grass.png",
    "hubble": "hubble_deep_field.jpg",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
}
EXAMPLES = {"train": 2000, "validation": 500}
SHORTER_SIDE = 320
SHARDS = 4


class DaliTfPhotos(tfds.core.GeneratorBasedBuilder):
    """Random crops and tone changes of ten photographs; the class is the photograph."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(encoding_format="jpeg"),
                    "label": tfds.features.ClassLabel(names=list(PHOTOGRAPHS)),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://scikit-image.org/docs/stable/api/skimage.data.html",
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {split: self._generate_examples(split, count) for split, count in EXAMPLES.items()}

    def _generate_examples(self, split: str, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        photographs = [(name, _photograph(file)) for name, file in PHOTOGRAPHS.items()]
        stream = list(EXAMPLES).index(split)
        for key in tqdm(range(count), split, unit="image", leave=False, disable=None):
            name, photograph = photographs[key % len(photographs)]
            rng = np.random.default_rng([stream, key])
            yield key, {"image": io.BytesIO(_variant(photograph, rng)), "label": name}


def _photograph(file: str) -> Image.Image:
    import skimage

    with Image.open(Path(skimage.__file__).parent / "data" / file) as image:
        return image.convert("RGB")


def _variant(photograph: Image.Image, rng: np.random.Generator, shorter_side: int = SHORTER_SIDE) -> bytes:
    """A JPEG of a random part of the photograph, in a random light."""
    aspect = rng.choice([1.0, 4 / 3, 3 / 4, 3 / 2])
    height = min(photograph.height, photograph.width / aspect) * rng.uniform(0.5, 1.0)
    width = height * aspect
    left, top = rng.uniform(0, photograph.width - width), rng.uniform(0, photograph.height - height)
    scale = shorter_side / min(height, width)
    image = photograph.resize(
        (round(width * scale), round(height * scale)),
        Image.Resampling.BICUBIC,
        box=(left, top, left + width, top + height),
    )
    for tone in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = tone(image).enhance(rng.uniform(0.7, 1.3))
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=90)
    return jpeg.getvalue()


def prepare(data_dir: Path) -> Path:
    """Make the data set below `data_dir` unless it is there; returns its folder. Takes about twenty seconds once."""
    builder = DaliTfPhotos(data_dir=data_dir)
    folder = Path(builder.data_dir)
    if not (folder / "dataset_info.json").is_file():
        config = tfds.download.DownloadConfig(num_shards=SHARDS, compute_stats=tfds.download.ComputeStatsMode.SKIP)
        print(f"Making the embedded data set in {folder} (once) …", file=sys.stderr)
        # TFDS prints about downloads that do not happen, and draws a bar for each of its steps.
        tfds.disable_progress_bar()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare(download_config=config)
        finally:
            tfds.enable_progress_bar()
    return folder
