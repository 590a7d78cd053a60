"""What becomes of bad records: `on_error="raise" | "skip" | "repair"`.

A policy turns a view into a view, before any engine sees it, so that every engine reads the same records. "Bad" means
that some decoder cannot read it, whichever of them the engine uses.
"""

import logging
from typing import Literal, NamedTuple

import numpy as np

from dali_pipe.records import Records
from dali_pipe.scan import OnFault
from dali_pipe.tfrecord import RecordError
from dali_pipe.words import counted
from tf_bridge import decoders, repair
from tf_bridge.verdict import DECODE
from tf_bridge.verify import Finding, Report, verify

log = logging.getLogger(__name__)

OnError = Literal["raise", "skip", "repair"]
POLICIES = ("raise", "skip", "repair")
_SHOWN = 5  # findings in a message


class Outcome(NamedTuple):
    """A view under a policy.

    Attributes:
        records: what is left to read; ids are what they were.
        skipped: bad records that are left out.
        repaired: bad records whose image is replaced.
    """

    records: Records
    skipped: tuple[Finding, ...] = ()
    repaired: tuple[Finding, ...] = ()


def on_fault(on_error: OnError) -> OnFault:
    """What the scan is to do over an unusable record, under this policy.

    Raises:
        ValueError: there is no such policy.
    """
    if on_error not in POLICIES:
        raise ValueError(f'`on_error` must be "raise", "skip" or "repair". Received: on_error={on_error!r}')
    return "raise" if on_error == "raise" else "skip"


def apply(records: Records, on_error: OnError, max_bad: float, *, engine: str, exif: bool, num_threads: int) -> Outcome:
    """Put a view under a policy; verifies what was not verified yet, for "raise" only images that do not look whole.

    Args:
        records: the view.
        on_error: "raise" leaves the view as it is: images that do not look whole, and that DALI cannot decode, are an
            error here, other damage when its batch comes. "skip" leaves bad records out. "repair" replaces the image
            where some decoder reads it, and leaves out the rest.
        max_bad: most that may be left out, as a fraction of the view.
        engine: "dali" or "tfdata".
        exif: whether images are turned by their EXIF orientation.
        num_threads: for verifying.

    Raises:
        ValueError: an argument is out of range, or more than `max_bad` would be left out.
        RecordError: under "raise", DALI would meet an image that it cannot decode.
    """
    if not 0 <= max_bad <= 1:
        raise ValueError(f"`max_bad` must be a fraction, 0 to 1. Received: max_bad={max_bad!r}")
    if on_fault(on_error) == "raise":
        if engine == "dali":
            _refuse_unsound(records, num_threads)
        return Outcome(records)
    report = verify(records, num_threads)
    _tell_of_absentees(report)
    left, cured = records, tuple[Finding, ...]()
    if on_error == "repair":
        left, cured = repair.repaired(records, [f for f in report.findings if f.cause == DECODE], exif)
    saved = {finding.record for finding in cured}
    skipped = tuple(finding for finding in report.findings if finding.record not in saved)
    _check_share(skipped, report.records, max_bad)
    if cured or skipped:
        bad = counted(len(report.findings), "record is", "records are")
        log.warning("%s bad: %d repaired, %d left out.", bad, len(cured), len(skipped))
    unwanted = np.array([finding.record for finding in skipped], np.int64)
    return Outcome(left.exclude(np.intersect1d(unwanted, left.ids)), skipped, cured)


def _refuse_unsound(records: Records, num_threads: int) -> None:
    """Find images that are cut short, or otherwise not in order, before an epoch does.

    The scan saw which images do not begin and end as they should; only those are decoded here, and the verdict kept.
    What is damaged within is met, and named, when its batch comes.
    """
    doubtful = records.select(records.table["whole"] == 0)
    for finding in verify(doubtful, num_threads).findings if len(doubtful) else ():
        if decoders.DALI in finding.reason:
            raise RecordError(
                finding.shard,
                finding.offset,
                f"{finding.reason} (record {finding.record} of its split). Leave such records out with "
                'on_error="skip", or records.exclude([…]); `dali-tf verify` lists them all.',
            )


def _tell_of_absentees(report: Report) -> None:
    for name in (decoders.TENSORFLOW, decoders.DALI):
        if not any(voter.startswith(f"{name} ") for voter in report.voters):
            log.warning(
                "%s did not vote on which records are bad: it cannot be loaded here. Where it can, they are verified "
                "again, and others may be left out.",
                name,
            )


def _check_share(skipped: tuple[Finding, ...], count: int, max_bad: float) -> None:
    if len(skipped) > max_bad * count:
        lines = [f"  {finding}" for finding in skipped[:_SHOWN]]
        if len(skipped) > _SHOWN:
            lines.append(f"  … and {len(skipped) - _SHOWN} more; `dali-tf verify` lists them all")
        raise ValueError(
            f"`max_bad` allows {max_bad:.2%} of the records to be left out. Received: max_bad={max_bad}, but "
            f"{len(skipped)} of {count} are bad ({len(skipped) / count:.2%}):\n" + "\n".join(lines)
        )
