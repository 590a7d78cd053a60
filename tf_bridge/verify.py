"""A whole view looked at once: framing, checksums, schema, headers, and every image decoded by every decoder there is.

Framing, schema and headers are the scan's, which came before. What is added is kept by shard (`verdict.py`), so that a
view is verified again only where it has records that were not, where a shard changed, or where a decoder is new.
"""

import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from tqdm import tqdm

from dali_pipe import cache
from dali_pipe.records import Records
from dali_pipe.tfrecord import FOOTER, HEADER, RecordError
from tf_bridge import decoders, verdict
from tf_bridge.verdict import CHECKSUM, DECODE, Verdict

HEADERS = "header"  # the cause of what the scan found: schema, no image, too large
_BATCH = 32  # records a task: enough that handing it over costs nothing


class Finding(NamedTuple):
    """A record that is bad.

    Attributes:
        shard: its file.
        record: its id, the ordinal in the split.
        offset: of its frame in the shard, bytes.
        cause: "header", "checksum" or "decode".
        reason: what is wrong, for people.
    """

    shard: Path
    record: int
    offset: int
    cause: str
    reason: str

    def __str__(self) -> str:
        return f"{self.shard}, record {self.record} at byte {self.offset}: {self.reason}"


@dataclass(frozen=True)
class Report:
    """What was found in a view.

    Attributes:
        records: how many were to be looked at, unusable ones included.
        findings: the bad ones, by their ids.
        voters: name and version of each decoder that was asked of every image.
        verified: how many were looked at now, and not taken from the cache.
        seconds: what that took.
    """

    records: int
    findings: tuple[Finding, ...]
    voters: tuple[str, ...]
    verified: int
    seconds: float


def verify(records: Records, num_threads: int, fresh: bool = False) -> Report:
    """Look at each record of a view.

    Args:
        records: the view; its `faults` are among the findings.
        num_threads: images looked at at once.
        fresh: ask again even where a verdict is kept.

    Raises:
        RecordError: a shard has changed since it was scanned.
    """
    records.check_unchanged()
    began = time.perf_counter()
    voters = tuple(f"{name} {version}" for name, version in decoders.available().items())
    work = [_Shard(records, place, voters, fresh) for place in np.unique(records.table["shard"]).tolist()]
    count = sum(len(shard.unknown) for shard in work)
    if count:
        _run(work, num_threads, count)
    verdicts = {shard.place: shard.verdict for shard in work}
    found = [*_findings(records, verdicts), *_scans_findings(records)]
    return Report(
        records=len(records) + len(records.faults),
        findings=tuple(sorted(found, key=lambda finding: finding.record)),
        voters=_common([v.voters for v in verdicts.values()]) if verdicts else voters,
        verified=count,
        seconds=time.perf_counter() - began,
    )


def _common(parts: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(voter for voter in parts[0] if all(voter in part for part in parts))


class _Shard:
    """One shard's part of the view and what is known of it."""

    def __init__(self, records: Records, place: int, voters: tuple[str, ...], fresh: bool):
        self.place, self.records = place, records
        self._path, self._key = records.shards[place], records.schema.image_key
        self._now = cache.fingerprint(self._path)
        rows = records.table[records.table["shard"] == place]
        self.verdict = Verdict(voters)
        if not fresh:
            self.verdict = verdict.load(self._path, self._key, self._now, voters, rows["offset"])
        self.unknown = self.verdict.unknown(rows["offset"])
        rows = rows[np.unique(rows["offset"], return_index=True)[1]]
        self._rows = rows[np.isin(rows["offset"], self.unknown)]

    def batches(self) -> list["_Batch"]:
        """What is to be looked at, in parts."""
        return [_Batch(self, self._rows[at : at + _BATCH]) for at in range(0, len(self._rows), _BATCH)]

    def frames(self, rows: np.ndarray) -> Iterator[bytes]:
        """The records, with their frames."""
        with open(self._path, "rb", buffering=0) as file:
            for offset, length in zip(rows["offset"].tolist(), rows["length"].tolist(), strict=True):
                file.seek(offset)
                frame = file.read(length)
                if len(frame) != length:
                    raise RecordError(self._path, offset, "the shard became shorter while it was read.")
                yield frame

    def close(self, bad: dict[int, tuple[str, str]]) -> None:
        """Keep what was found."""
        self.verdict = self.verdict.extended(self.unknown, bad)
        verdict.store(self._path, self._key, self._now, self.verdict)


class _Batch(NamedTuple):
    shard: _Shard
    rows: np.ndarray

    def look(self, panel: decoders.Panel) -> dict[int, tuple[str, str]]:
        """Cause and reason of the bad records, by offset."""
        bad = dict[int, tuple[str, str]]()
        for row, frame in zip(self.rows, self.shard.frames(self.rows), strict=True):
            start = int(row["image_offset"] - row["offset"])
            if reason := _checksum_fault(frame):
                bad[int(row["offset"])] = CHECKSUM, reason
            elif reason := panel.refusal(frame[start : start + int(row["image_length"])]):
                bad[int(row["offset"])] = DECODE, reason
        return bad


def _checksum_fault(frame: bytes) -> str | None:
    """What is wrong with a record's two checksums (CRC-32C, masked as TensorFlow does)."""
    for name, data, stored in (
        ("length", frame[: HEADER - 4], frame[HEADER - 4 : HEADER]),
        ("content", frame[HEADER:-FOOTER], frame[-FOOTER:]),
    ):
        crc = google_crc32c.value(data)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        if struct.pack("<I", masked) != stored:
            return f"the record's {name} does not match its checksum: it is damaged. Copy the shard again."
    return None


def _run(work: list[_Shard], num_threads: int, count: int) -> None:
    """Look at all that is unknown; each shard's verdict is kept as soon as it is there."""
    local = threading.local()

    def look(batch: _Batch) -> dict[int, tuple[str, str]]:
        if not hasattr(local, "panel"):
            local.panel = decoders.Panel()
        return batch.look(local.panel)

    pool = ThreadPoolExecutor(num_threads, "verify")
    try:
        parts = [shard.batches() for shard in work]
        results = pool.map(look, [batch for part in parts for batch in part])
        with tqdm(total=count, desc="Verifying", unit=" images", leave=False, disable=None) as bar:
            for shard, part in zip(work, parts, strict=True):
                bad = dict[int, tuple[str, str]]()
                for batch in part:
                    bad.update(next(results))
                    bar.update(len(batch.rows))
                if part:
                    shard.close(bad)
    finally:
        pool.shutdown(cancel_futures=True)


def _findings(records: Records, verdicts: dict[int, Verdict]) -> Iterator[Finding]:
    bad = np.array([(place, at) for place, v in verdicts.items() for at in v.bad], np.int64).reshape(-1, 2)
    table = records.table
    suspects = np.flatnonzero(np.isin(table["offset"], bad[:, 1]) & np.isin(table["shard"], bad[:, 0]))
    seen = set[int]()
    for row in table[suspects]:
        shard, at, record = int(row["shard"]), int(row["offset"]), int(row["id"])
        if at in verdicts[shard].bad and record not in seen:
            seen.add(record)
            yield Finding(records.shards[shard], record, at, *verdicts[shard].bad[at])


def _scans_findings(records: Records) -> Iterator[Finding]:
    for fault in records.faults:
        yield Finding(records.shards[fault.shard], fault.id, fault.offset, HEADERS, fault.reason)
