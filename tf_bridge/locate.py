"""Where the data are that a command line names, found out without loading a framework."""

import glob
import os
from pathlib import Path

from dali_pipe import tfds_source
from dali_pipe.folders import cache_folder


def is_files(data: str) -> bool:
    """Whether this is a file or a glob pattern, not the name or folder of a TFDS data set."""
    return os.path.isfile(data) or (not os.path.isdir(data) and glob.has_magic(data))


def embedded() -> Path:
    """The folder of the embedded data set, which is made if it is not there."""
    folder = cache_folder() / "tensorflow_datasets"
    try:
        return tfds_source.find("dali_tf_photos", folder)
    except tfds_source.DatasetNotFoundError:
        from tf_bridge import sample_data  # TensorFlow Datasets takes seconds to load

        return sample_data.prepare(folder)
