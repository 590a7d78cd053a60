"""What the decoders said of a shard's records, kept until the shard changes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dali_pipe import cache
from dali_pipe.geometry import Ints

CHECKSUM, DECODE = "checksum", "decode"  # what can be wrong with a record whose header is sound


@dataclass(frozen=True)
class Verdict:
    """The verified records of one shard.

    Attributes:
        voters: name and version of each decoder that was asked.
        offsets: of the verified records, ascending.
        bad: by offset, cause (`CHECKSUM` or `DECODE`) and reason.
    """

    voters: tuple[str, ...]
    offsets: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    bad: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    def unknown(self, offsets: Ints) -> Ints:
        """Those of these offsets that are not verified yet, ascending, each once."""
        return np.setdiff1d(offsets, self.offsets)

    def extended(self, offsets: Ints, bad: Mapping[int, tuple[str, str]]) -> "Verdict":
        """With more records, verified by the same voters."""
        return Verdict(self.voters, np.union1d(self.offsets, offsets), {**self.bad, **bad})


def _kind(image_key: str) -> str:
    return f"verdict\0{image_key}"


def load(path: str | os.PathLike[str], image_key: str, now: Ints, voters: tuple[str, ...], offsets: Ints) -> Verdict:
    """What is known of a shard whose fingerprint is `now`, and still counts; an empty verdict where nothing does.

    One by more decoders than there are now counts, if it has all of `offsets`: nothing has to be added to it. One that
    misses a decoder does not.
    """
    arrays = cache.load(path, _kind(image_key), now)
    if arrays is None or arrays.keys() != {"voters", "offsets", "bad", "causes", "reasons"}:
        return Verdict(voters)
    entries = zip(arrays["bad"].tolist(), arrays["causes"].tolist(), arrays["reasons"].tolist(), strict=True)
    known = Verdict(
        tuple(arrays["voters"].tolist()), arrays["offsets"], {at: (cause, reason) for at, cause, reason in entries}
    )
    same, more = set(voters) == set(known.voters), set(voters) < set(known.voters)
    return known if same or (more and not known.unknown(offsets).size) else Verdict(voters)


def store(path: str | os.PathLike[str], image_key: str, now: Ints, verdict: Verdict) -> None:
    """Keep a verdict for a shard whose fingerprint was `now` before it was read."""
    causes, reasons = zip(*verdict.bad.values(), strict=True) if verdict.bad else ((), ())
    arrays = {
        "voters": np.array(verdict.voters, np.str_),
        "offsets": verdict.offsets,
        "bad": np.array(list(verdict.bad), np.int64),
        "causes": np.array(causes, np.str_),
        "reasons": np.array(reasons, np.str_),
    }
    cache.store(path, _kind(image_key), now, arrays)
