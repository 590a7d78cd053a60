"""The embedded data set's photographs again, in other sizes: what image size does to each pipeline."""

import os
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from benchmarks.case import work_folder
from tf_bridge import sample_data

COUNT = 1000
SHORTER_SIDES = (160, 320, 375)  # ImageNet's images are 500x375 in the median


def shards(shorter_side: int) -> str:
    """A glob of TFRecord files with `COUNT` JPEGs of this shorter side; written once."""
    folder = work_folder() / f"photos-{shorter_side}"
    if not folder.exists():
        aside = Path(f"{folder}.{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        _write(shorter_side, aside / "photos.tfrecord")
        os.replace(aside, folder)
    return str(folder / "photos.tfrecord*")


def _write(shorter_side: int, path: Path) -> None:
    photographs = [sample_data._photograph(file) for file in sample_data.PHOTOGRAPHS.values()]
    with tf.io.TFRecordWriter(str(path)) as writer:
        written = f"Making photographs of {shorter_side} px"
        for key in tqdm(range(COUNT), written, unit=" images", leave=False, disable=None):
            label = key % len(photographs)
            jpeg = sample_data._variant(photographs[label], np.random.default_rng(key), shorter_side)
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
