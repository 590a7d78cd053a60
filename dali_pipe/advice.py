"""What a data set's figures mean for training on it: a sentence each, with the figure and the way out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dali_pipe.duplicates import Copy
from dali_pipe.plan import MAX_SEGMENTS
from dali_pipe.summary import PERCENTILES, SplitSummary, Summary
from dali_pipe.words import counted

_MEDIAN = PERCENTILES.index(50)
_SORTED = 0.5  # of the way from a mixed file to one sorted by class
_LARGE = 3.0  # times the crop: decoding reads nine times the pixels that training sees
_UNEVEN = 10.0  # times as many records in the largest class as in the smallest
_SLOW = 0.01  # share of images in a format that is slow to decode
_SMALL_SHARD, _MANY = 10 << 20, 64  # bytes; files
_BIG_SHARD, _FEW = 2 << 30, 8  # bytes; files


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to mind.

    Attributes:
        about: what it concerns, in one word that scripts can match.
        text: what is the matter, and what to do.
    """

    about: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """What advice is given for: the figures, the crop's side in pixels, shares of images smaller than it, the command.

    Attributes:
        summary: the figures.
        size: of the crop, pixels.
        smaller: how many images have a side smaller than it.
        data: how the data set is named on the command line, to go into commands.
    """

    summary: Summary
    size: int
    smaller: int
    data: str


def advice(case: Case) -> list[Advice]:
    """Everything worth saying, the gravest first."""
    return [Advice(about=about, text=text) for about, rule in _RULES.items() for text in rule(case)]


def _bad(case: Case) -> Iterator[str]:
    summary = case.summary
    for path, why in list(summary.problems.items())[:5]:
        yield f"{path}: {why}"
    if bad := summary.bad:
        share = _percent(bad, bad + summary.records)
        command = f"dali-tf verify {case.data}".rstrip()
        said = counted(bad, f"record ({share}) is", f"records ({share}) are")
        yield f'{said} unusable. `{command}` lists what is bad; on_error="skip" trains without it.'


def _leaks(case: Case) -> Iterator[str]:
    across = [group for group in case.summary.duplicates if len(group.splits) > 1]
    if across:
        first = across[0]
        where = " and ".join(f"{copy.split} #{copy.record}" for copy in _one_of_each(first.copies))
        images = counted(len(across), "image is", "images are")
        yield (
            f"{images} in more than one split (such as {where}): what is measured on one is partly "
            "known from the other. Leave them out of the smaller one with records.exclude([…])."
        )


def _one_of_each(copies: Sequence[Copy]) -> list[Copy]:
    """The first copy of each split."""
    return list({copy.split: copy for copy in reversed(copies)}.values())[::-1]


def _copies(case: Case) -> Iterator[str]:
    groups = case.summary.duplicates
    within = sum(len(group.copies) - len(group.splits) for group in groups)
    if within:
        copies = counted(within, "image is a copy", "images are copies")
        yield f"{copies} of another in the same split: such images count twice in training and in metrics."
    if unlike := sum(len(group.labels) > 1 for group in groups):
        images = counted(unlike, "image is", "images are")
        yield f"{images} there under different labels, of which all but one are wrong. --json lists the copies."


def _labels(case: Case) -> Iterator[str]:
    summary, counts = case.summary, case.summary.classes
    present = counts[counts > 0]
    if summary.label_key is None:
        yield "no feature looks like a label: every label reads 0. Name it with --label-key."
    elif summary.outside:
        labels = counted(summary.outside, "label is", "labels are")
        yield f"{labels} outside 0 to {max(len(counts), 1) - 1}: check --label-offset."
    elif len(counts) and counts[0] == 0 and not summary.class_names and counts.nonzero()[0][0] == 1:
        yield "labels begin at 1, and losses count from 0: pass --label-offset 1."
    elif len(present) > 1 and present.max() > _UNEVEN * present.min():
        yield (
            f"the largest class has {present.max():,} records, {present.max() / present.min():,.0f} times the "
            "smallest's. Pass class_weight= to fit, and look at metrics by class."
        )
    for name, split in summary.splits.items():
        if missing := int(np.sum((counts > 0) & (np.pad(split.classes, (0, len(counts) - len(split.classes))) == 0))):
            yield f"{name} has no record of {missing} of the classes that other splits have."


def _order(case: Case) -> Iterator[str]:
    for name, split in case.summary.splits.items():
        if split.sorted_by_class > _SORTED:
            yield (
                f"{name} is sorted by class: a slice of it leaves whole classes out, and shuffle=False shows one class "
                f"after the other. {_remedy(split)}"
            )


def _remedy(split: SplitSummary) -> str:
    if split.records <= MAX_SEGMENTS:
        return "shuffle=True is a full permutation here, and cures the order."
    return f'With more than {MAX_SEGMENTS:,} records shuffle=True permutes blocks of neighbours: use shuffle="exact".'


def _sizes(case: Case) -> Iterator[str]:
    summary = case.summary
    if case.smaller:
        share = _percent(case.smaller, summary.records)
        images = counted(case.smaller, f"image ({share}) has", f"images ({share}) have")
        yield (
            f"{images} a side smaller than the crop of {case.size} px, to which such images are enlarged. A smaller "
            "--size would show them as they are."
        )
    if summary.images and (median := summary.images["shorter side"][_MEDIAN]) > _LARGE * case.size:
        times = (median / case.size) ** 2
        yield (
            f"the median shorter side is {median:,.0f} px for a crop of {case.size}: decoding whole images reads about "
            f"{times:,.0f} times the pixels that training sees. Store a copy with a shorter side of {2 * case.size} px."
        )


def _formats(case: Case) -> Iterator[str]:
    formats, records = case.summary.formats, case.summary.records
    slow = sum(count for name, count in formats.items() if "progressive" in name)
    if slow > _SLOW * records:
        share = _percent(slow, records)
        images = counted(slow, f"image ({share}) is a progressive JPEG", f"images ({share}) are progressive JPEGs")
        yield (
            f"{images}: such take two to three times as long to decode, and a GPU's JPEG hardware does not do them. "
            "Store them again with `jpegtran`."
        )
    misnamed = sum(count for name, count in formats.items() if " named " in name)
    if misnamed:
        images = counted(misnamed, "image is of another format than its", "images are of another format than their")
        yield f"{images} file name says. Images are read by what they are."
    other = sum(count for name, count in formats.items() if not name.startswith("JPEG"))
    if other > _SLOW * records:
        share = _percent(other, records)
        images = counted(other, f"image ({share}) is no JPEG", f"images ({share}) are no JPEGs")
        yield (
            f"{images}: such are decoded whole, and on the CPU on every engine. Store them as JPEGs of a good quality "
            "where that is acceptable."
        )


def _orientations(case: Case) -> Iterator[str]:
    turned = sum(count for turn, count in case.summary.orientations.items() if turn != 1)
    if turned:
        share = _percent(turned, case.summary.records)
        images = counted(turned, f"image ({share}) is", f"images ({share}) are")
        yield (
            f"{images} to be turned by their EXIF orientation, which recipes ignore unless told "
            "otherwise, as TensorFlow does: dataclasses.replace(recipe, exif=True) turns them."
        )


def _shards(case: Case) -> Iterator[str]:
    for name, split in case.summary.splits.items():
        if split.shards >= _MANY and split.shard_bytes[1] < _SMALL_SHARD:
            yield (
                f"{name} has {split.shards:,} files of about {split.shard_bytes[1] / (1 << 20):.1f} MB, so opening "
                "them costs more than reading them, on a network drive above all. Aim at 100 to 200 MB a file."
            )
        if split.shards < _FEW and split.shard_bytes[2] > _BIG_SHARD:
            files = counted(split.shards, "file", "files")
            yield (
                f"{name} has {files} of up to {split.shard_bytes[2] / (1 << 30):.1f} GB, so few can be "
                "read at once, and one damaged file loses much. Aim at 100 to 200 MB a file."
            )


def _percent(count: int, whole: int) -> str:
    share = count / max(whole, 1)
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.001 else f"{share:.2g}"


_RULES: dict[str, Callable[[Case], Iterator[str]]] = {
    "bad": _bad,
    "leakage": _leaks,
    "duplicates": _copies,
    "labels": _labels,
    "order": _order,
    "size": _sizes,
    "format": _formats,
    "orientation": _orientations,
    "shards": _shards,
}
