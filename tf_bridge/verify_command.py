"""`dali-tf verify`: every record of a data set looked at once, as a table or JSON."""

import argparse
import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from dali_pipe import records as records_lib
from dali_pipe.device import available_cores
from dali_pipe.tfrecord import RecordError
from tf_bridge import cli_data, quiet
from tf_bridge.columns import columns
from tf_bridge.verify import Report, verify

SHARD = "shard"  # cause of what makes a whole shard unusable


def run(arguments: argparse.Namespace) -> int:
    """Verify and print as the arguments say; returns the exit code: 1 if something is bad."""
    try:
        with _without_warning():
            records, _ = cli_data.open_records(arguments)
    except RecordError as error:
        return _refuse(error, arguments)
    with quiet.decoders(shown=arguments.verbose):
        report = verify(records, arguments.threads or available_cores(), arguments.fresh)
    print(json.dumps(summary(report), indent=2) if arguments.json else text(report))
    return 1 if report.findings else 0


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Without the log's count of records that are left out: here they are listed."""
    level = records_lib.log.level
    records_lib.log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        records_lib.log.setLevel(level)


def _refuse(error: RecordError, arguments: argparse.Namespace) -> int:
    """A broken shard has no records to verify, and without it those of the others have no ids."""
    if arguments.json:
        finding = {"shard": str(error.path), "record": None, "offset": error.offset, "cause": SHARD}
        print(json.dumps({"ok": False, "records": None, "findings": [{**finding, "reason": error.reason}]}, indent=2))
    else:
        print(f"Bad:     {error}\n\nNo record was looked at: the shards must be whole first.")
    return 1


def summary(report: Report) -> dict[str, Any]:
    """Everything the text says, for `json.dumps`."""
    return {
        "ok": not report.findings,
        "records": report.records,
        "bad": len(report.findings),
        "decoders": list(report.voters),
        "verified": report.verified,
        "seconds": report.seconds,
        "findings": [{**finding._asdict(), "shard": str(finding.shard)} for finding in report.findings],
    }


def text(report: Report) -> str:
    """Counts, then a line for each finding."""
    bad, rate = len(report.findings), report.verified / max(report.seconds, 1e-9)
    speed = f" ({rate:,.0f} images/s)" if report.verified else ""
    lines = [
        f"Records: {report.records:,}, of which {report.verified:,} decoded now{speed}",
        f"Checked: framing, checksums, schema, headers; decoded by {', '.join(report.voters)}",
        f"Bad:     {bad} ({bad / max(report.records, 1):.2%})",
    ]
    if bad:
        cells = [["shard", "record", "offset", "reason"]]
        cells += [[f.shard.name, str(f.record), str(f.offset), f.reason] for f in report.findings]
        lines += ["", columns(cells, right={1, 2})]
    return "\n".join(lines)
