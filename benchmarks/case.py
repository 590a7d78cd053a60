"""One thing to measure, as plain data that goes to a process of its own."""

import glob
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import dali_pipe as dp
from dali_pipe import records as records_lib
from dali_pipe import tfds_source
from dali_pipe.cache import cache_folder
from dali_pipe.recipe import DType
from tf_bridge.locate import embedded, is_files

RecipeName = Literal["crop_train", "imagenet_train"]
RECIPES: tuple[RecipeName, ...] = ("crop_train", "imagenet_train")
DTYPES: tuple[DType, ...] = ("uint8", "float32")


class SkipError(Exception):
    """Why a case cannot run on this machine or data: it is listed with this reason, and the others go on."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pipeline and what it is to do.

    Attributes:
        pipeline: name of the module below `benchmarks.pipelines`.
        data: folder of a prepared TFDS data set, or a glob of TFRecord files.
        split: a whole TFDS split, "train" say; files have none.
        recipe: `dali_pipe.crop_train` or `dali_pipe.imagenet_train`.
        dtype: of the images.
        size: pixels of the crop's side.
        batch_size: images.
        threads: CPU threads, where the pipeline takes a number.
        shuffle: a random order.
        option: what the pipeline's module calls a variant; engine and device for ours ("dali/cpu").
        dct: our JPEG decoder's inverse transform; the others keep TensorFlow's default, the fast one.
        image_key: feature with the image, in plain TFRecord files.
        label_key: feature with the label, in plain TFRecord files.
        label_offset: what plain TFRecord files call the first class.
    """

    pipeline: str
    data: str
    split: str = "train"
    recipe: RecipeName = "crop_train"
    dtype: DType = "uint8"
    size: int = 224
    batch_size: int = 64
    threads: int = 1
    shuffle: bool = True
    option: str = ""
    dct: Literal["accurate", "fast"] = "accurate"
    image_key: str = "image"
    label_key: str = "label"
    label_offset: int = 0

    @property
    def name(self) -> str:
        """For tables: the pipeline and its variant."""
        return f"{self.pipeline} {self.option}".strip()

    @cached_property
    def ours(self) -> dp.Recipe:
        """The recipe as data."""
        make = {"crop_train": dp.crop_train, "imagenet_train": dp.imagenet_train}[self.recipe]
        return replace(make(self.size, self.dtype), dct=self.dct)

    @property
    def is_tfds(self) -> bool:
        """Whether the data is a TFDS data set."""
        return os.path.isdir(self.data)

    @cached_property
    def records(self) -> dp.Records:
        """All records of the split."""
        if not self.is_tfds:
            schema = dp.Schema(image_key=self.image_key, label_key=self.label_key, label_offset=self.label_offset)
            return records_lib.from_files(self.data, schema)
        dataset = tfds_source.read_metadata(Path(self.data))
        return tfds_source.open_split(dataset, self.split, dataset.schema())

    @cached_property
    def files(self) -> list[str]:
        """The shards. Cheap for plain files, which are not opened."""
        if not self.is_tfds:
            return sorted(glob.glob(self.data))
        return [str(path) for path in self.records.shards]

    @property
    def keys(self) -> tuple[str, str]:
        """The features with the image and the label."""
        schema = self.records.schema
        return schema.image_key, str(schema.label_key)


def find_data(data: str | None, data_dir: str | None = None) -> str:
    """What `Case.data` holds for what a person gave: a TFDS name or folder, a glob, or nothing for the embedded set."""
    if data is None:
        return str(embedded())
    if is_files(data):
        return data
    return str(tfds_source.find(data, data_dir))


def work_folder() -> Path:
    """Where what the pipelines need is kept: images as files, the compiled limit."""
    return cache_folder() / "benchmarks"
