"""Images that are there more than once, byte for byte, within splits and across them."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipe.survey import Survey


class Copy(NamedTuple):
    """One of several like images: the record's split, its ordinal there, its label, and its shard."""

    split: str
    record: int
    label: int
    shard: str


class Group(NamedTuple):
    """Like images."""

    copies: tuple[Copy, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have one, in order."""
        return tuple(dict.fromkeys(copy.split for copy in self.copies))

    @property
    def labels(self) -> set[int]:
        """Their labels: one, unless somebody is wrong."""
        return {copy.label for copy in self.copies}


Suspects = tuple[NDArray[np.int64], NDArray[np.int64]]


def duplicates(survey: Survey, suspected: Suspects, tick: Callable[[int], object]) -> tuple[Group, ...]:
    """Every group of like images, the largest first. Images are alike if SHA-256 of their bytes is.

    Args:
        survey: the data set.
        suspected: which images are to be read: `suspects(survey)`.
        tick: called with 1 for each image that was read.
    """
    place, row = suspected
    found: dict[bytes, list[Copy]] = {}
    for shard in np.unique(place).tolist():
        part, rows = survey.shards[shard], row[place == shard]
        try:
            with open(part.source.path, "rb", buffering=0) as file:
                for entry in part.table[rows]:
                    file.seek(int(entry["image_offset"]))
                    digest = hashlib.sha256(file.read(int(entry["image_length"]))).digest()
                    label = int(entry["label"]) - survey.schema.label_offset
                    copy = Copy(part.source.split, int(entry["id"]), label, part.source.path.name)
                    found.setdefault(digest, []).append(copy)
                    tick(1)
        except OSError:  # it was there a moment ago: without it, fewer copies are known
            continue
    groups = [Group(tuple(copies)) for copies in found.values() if len(copies) > 1]
    return tuple(sorted(groups, key=lambda group: -len(group.copies)))


def suspects(survey: Survey) -> Suspects:
    """Places of shards, and rows there, of the images whose length and probe are another's too."""
    sizes = [len(shard.looks) for shard in survey.shards]
    probes = np.concatenate([np.empty(0, np.uint64), *(shard.looks["probe"] for shard in survey.shards)])
    _, inverse, counts = np.unique(probes, return_inverse=True, return_counts=True)
    suspect = counts[inverse] > 1 if len(probes) else np.zeros(0, bool)
    place, row = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([[0], *(np.arange(n) for n in sizes)])[1:]
    return place[suspect].astype(np.int64), row[suspect].astype(np.int64)
