"""Records: which records of which shards, in what order, as one numpy table.

The index is the view. DALI's reader reads exactly the `(offset, length)` lines it is given, so every split, filter and
permutation is a selection of rows here, and no data is copied.
"""

import glob
import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dali_pipe.scan import RECORD, Fault, OnFault, Scan, Schema, Table, refusal, scan_shard
from dali_pipe.tfrecord import RecordError
from dali_pipe.way_out import way_out
from dali_pipe.words import counted

__all__ = ["RECORD", "Fault", "Records", "Schema", "Table", "concatenate", "from_files", "open_shards", "stamp"]

log = logging.getLogger(__name__)

_SIDEWAYS = 5  # EXIF orientations from here on exchange height and width


Stamp = tuple[int, int]  # size in bytes, mtime in ns


def stamp(status: os.stat_result) -> Stamp:
    """What tells that a file is the same."""
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, eq=False)
class Records:
    """A view of the records in some shards.

    Attributes:
        shards: the files.
        table: a row of `RECORD` for each record, in the view's order.
        schema: where image and label are.
        classes: names of the classes, where the data set gives them.
        stamps: size and modification time of each shard when it was scanned; empty where there are no files.
        faults: the unusable records that were left out when the view was opened, in order. They stay with the whole
            view and with what `exclude` leaves of it; no other selection has them.
    """

    shards: tuple[Path, ...]
    table: Table
    schema: Schema
    classes: tuple[str, ...] = ()
    stamps: tuple[Stamp, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return f"<Records: {len(self)} records in {len(self.shards)} shards>"

    @property
    def ids(self) -> NDArray[np.int64]:
        """Ordinal of each record in its whole split, `(n,)`."""
        return self.table["id"]

    @property
    def labels(self) -> NDArray[np.int64]:
        """Label of each record, counted from 0, `(n,)`."""
        return self.table["label"] - self.schema.label_offset

    def sizes(self, exif: bool = False) -> NDArray[np.int64]:
        """`(height, width)` of each image in pixels, `(n, 2)`; with `exif`, after the turn by its orientation."""
        stored = np.stack([self.table["height"], self.table["width"]], axis=1).astype(np.int64)
        turned = exif & (self.table["orientation"] >= _SIDEWAYS)
        return np.where(turned[:, None], stored[:, ::-1], stored)

    def select(self, index: ArrayLike | slice) -> "Records":
        """The records at these places, in this order; an index array or a mask."""
        if not isinstance(index, slice):
            index = np.asarray(index)
            index = index if index.size else index.astype(np.int64)  # numpy takes [] for floats
        return replace(self, table=self.table[index], faults=())

    def take(self, count: int) -> "Records":
        """The first `count` records, or all if there are fewer."""
        return self.select(slice(_count("count", count)))

    def skip(self, count: int) -> "Records":
        """All but the first `count` records."""
        return self.select(slice(_count("count", count), None))

    def split(self, fraction: float) -> tuple["Records", "Records"]:
        """The first `fraction` of the records and the rest, cut where TFDS cuts a percentage (nearest record).

        In the view's order: of files that are sorted by class the rest is the last classes. Mix such a view first, with
        `view.select(np.random.default_rng(0).permutation(len(view)))`.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"`fraction` must be in [0, 1]. Received: fraction={fraction!r}")
        at = round(fraction * len(self))
        return self.take(at), self.skip(at)

    def exclude(self, ids: Iterable[int]) -> "Records":
        """Without the records of these ids. Nobody else's random draws change.

        Raises:
            TypeError: something that is no id.
            ValueError: an id that the view does not hold.
        """
        try:
            unwanted = np.fromiter(ids, np.int64)
        except (TypeError, ValueError):
            raise TypeError(f"`ids` must be ints, as `Records.ids` has them. Received: ids={ids!r}") from None
        if (missing := np.setdiff1d(unwanted, self.ids)).size:
            raise ValueError(f"`ids` must be of records in this view. Received: {missing[:10].tolist()}")
        return replace(self, table=self.table[~np.isin(self.ids, unwanted)])

    def check_unchanged(self) -> None:
        """Raise if a shard has gone or changed since it was scanned: its records may be anywhere now.

        Raises:
            RecordError: a shard has changed; names it.
            FileNotFoundError: a shard has gone.
        """
        for place in range(len(self.stamps)):
            self.check_stamp(place, os.stat(self.shards[place]))

    def check_stamp(self, shard: int, status: os.stat_result) -> None:
        """`check_unchanged` of one shard, whose status is known."""
        if self.stamps and self.stamps[shard] != stamp(status):
            raise RecordError(
                self.shards[shard], None, "the shard has changed since it was scanned. Make the data set again."
            )

    def where(self, place: int) -> str:
        """Shard and offset of the record at a place, for messages."""
        row = self.table[place]
        return f"{self.shards[row['shard']]}, record at byte {row['offset']}"


def _count(name: str, value: int) -> int:
    if value < 0:
        raise ValueError(f"`{name}` must not be negative. Received: {name}={value!r}")
    return value


def concatenate(parts: Sequence[Records]) -> Records:
    """The records of views of the same shards, one after the other."""
    faults = tuple(fault for part in parts for fault in part.faults)
    return replace(parts[0], table=np.concatenate([part.table for part in parts]), faults=faults)


def from_files(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    schema: Schema | None = None,
    on_error: OnFault = "raise",
) -> Records:
    """All records of plain TFRecord files, in the order of the files.

    Args:
        files: a path, a glob pattern (its matches in sorted order), or a sequence of these.
        schema: where image and label are; `Schema()` if not given.
        on_error: "raise", or "skip" to leave unusable records out and list them in `Records.faults`.

    Raises:
        FileNotFoundError: nothing matches.
        RecordError: a shard or, with `on_error="raise"`, a record is unusable; names it.
    """
    patterns = [files] if isinstance(files, str | os.PathLike) else list(files)
    paths = [path for pattern in patterns for path in matching(os.fspath(pattern))]
    if not paths:
        raise FileNotFoundError(f"`files` must match at least one TFRecord file. Received: {files!r}")
    records = open_shards(paths, schema or Schema(), on_error)
    if not records.schema.label_offset and len(records) and records.labels.min() == 1:
        log.warning("No label is 0: if these files call their first class 1, pass label_offset=1.")
    return records


def matching(pattern: str) -> list[Path]:
    """The files that a path or glob pattern names, sorted.

    Raises:
        FileNotFoundError: there are none.
    """
    if os.path.isfile(pattern):  # a name may hold [ or * itself
        return [Path(pattern)]
    found = sorted(glob.glob(os.path.expanduser(pattern)))
    files = [Path(path) for path in found if os.path.isfile(path)]
    if not files:
        hint = way_out(pattern) or "check the path"
        raise FileNotFoundError(f"`files` must match at least one TFRecord file; {hint}. Received: {pattern!r}")
    return files


def open_shards(paths: Sequence[Path], schema: Schema, on_error: OnFault = "raise") -> Records:
    """Scan shards, or take their scan from the cache; ids count through all of them.

    Every record's header is checked, so that nothing is built over a record that would give garbage or a crash.

    Raises:
        RecordError: a shard or, with `on_error="raise"`, a record is unusable; names it.
    """
    from tqdm import tqdm

    if on_error not in ("raise", "skip"):
        raise ValueError(f'`on_error` must be "raise" or "skip". Received: on_error={on_error!r}')
    paths = [Path(os.path.abspath(path)) for path in paths]  # a program may change its folder later
    stamps = tuple(stamp(os.stat(path)) for path in paths)  # before they are read, so that a change meanwhile shows
    with ThreadPoolExecutor(max_workers=min(8, len(paths) or 1)) as pool:
        scans = pool.map(lambda path: _scanned(path, schema, on_error), paths)
        done = list(tqdm(scans, "Scanning shards", len(paths), leave=False, delay=1, disable=None))
    records = _without_impossible_labels(_joined(tuple(paths), schema, stamps, done), on_error)
    if bad := len(records.faults):
        of = f"of {len(records) + bad} records"
        log.warning("%s unusable and left out.", counted(bad, f"{of} is", f"{of} are"))
    return records


def _scanned(path: Path, schema: Schema, on_error: OnFault) -> Scan:
    try:
        return scan_shard(path, schema, on_error)
    except RecordError as error:
        if on_error == "raise":
            raise
        reason = f"{error.reason} `on_error` leaves out single records, and no record can be told here."
        raise RecordError(path, error.offset, reason) from None


def _joined(paths: tuple[Path, ...], schema: Schema, stamps: tuple[Stamp, ...], scans: Sequence[Scan]) -> Records:
    first, faults = 0, list[Fault]()
    for place, scan in enumerate(scans):
        scan.table["shard"] = place
        scan.table["id"] += first
        faults += [Fault(place, first + fault.id, fault.offset, fault.reason) for fault in scan.faults]
        first += len(scan)
    table = np.concatenate([scan.table for scan in scans]) if scans else np.empty(0, RECORD)
    return Records(paths, table, schema, stamps=stamps, faults=tuple(faults))


def _without_impossible_labels(records: Records, on_error: OnFault) -> Records:
    """Without those below the first class. Only where there is an offset: else a negative label may stand for none."""
    below = records.labels < 0
    if not records.schema.label_offset or not below.any():
        return records
    _check_label_offset(records, below)
    rule = f"is below the first class's, which is `label_offset`={records.schema.label_offset}"
    faults = [
        Fault(int(row["shard"]), int(row["id"]), int(row["offset"]), f"label {row['label']} {rule}.")
        for row in records.table[below]
    ]
    if on_error == "raise":
        raise refusal(records.shards[faults[0].shard], faults[0], "its split")
    return replace(records, table=records.table[~below], faults=tuple(sorted((*records.faults, *faults))))


def _check_label_offset(records: Records, below: NDArray[np.bool_]) -> None:
    """Raise where a label is the one before the first class, or most are below it: the files count otherwise."""
    low, place = int(records.labels.min()), int(records.labels.argmin())
    if (records.labels == -1).any() or 2 * np.count_nonzero(below) > len(records):
        raise ValueError(
            f"`label_offset` must be what the files call the first class. Received: "
            f"label_offset={records.schema.label_offset}, but {records.where(place)}, "
            f"has label {low + records.schema.label_offset}"
        )
