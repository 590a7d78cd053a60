"""The records' images as files, for loaders that want a folder a class."""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.case import Case, work_folder
from dali_pipe import reader

_DONE = "complete"


def export(case: Case) -> Path:
    """A folder with the split's images, `LABEL/ID.jpg`; written once, the bytes unchanged."""
    folder = work_folder() / "images" / _name(case)
    if not (folder / _DONE).exists():
        aside = folder.with_name(f"{folder.name}.{os.getpid()}")
        _write(case, aside)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
    return folder / "images"


def listing(case: Case) -> list[tuple[str, int]]:
    """The files of `export` and their labels."""
    return [(str(path), int(path.parent.name)) for path in sorted(export(case).glob("*/*.jpg"))]


def _name(case: Case) -> str:
    stamps = [os.stat(path) for path in case.files]
    stamped = [(status.st_size, status.st_mtime_ns) for status in stamps]
    text = repr((case.files, stamped, case.split, case.image_key, case.label_key, case.label_offset))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(case: Case, folder: Path) -> None:
    records = case.records
    labels = tqdm(records.labels.tolist(), "Writing images as files", unit=" images", leave=False, disable=None)
    for place, label in enumerate(labels):
        target = folder / "images" / f"{label:05d}"
        target.mkdir(parents=True, exist_ok=True)
        image = next(iter(reader.read_images(records, np.array([place]))))
        (target / f"{records.ids[place]:08d}.jpg").write_bytes(bytes(image))
    (folder / _DONE).touch()
