"""This project's data set; `case.option` is engine and device, "dali/cpu" say."""

from typing import Any, cast

import tf_bridge as tb
from benchmarks.case import Case, SkipError
from dali_pipe.device import DeviceName, DeviceUnavailableError
from tf_bridge.choice import EngineName


def make(case: Case) -> Any:
    """A data set that ends, and begins its next epoch when iterated again."""
    engine, _, device = (case.option or "auto/auto").partition("/")
    try:
        return tb.from_records(
            case.records,
            recipe=case.ours,
            batch_size=case.batch_size,
            shuffle=case.shuffle,
            seed=0,
            engine=cast(EngineName, engine),
            device=cast(DeviceName, device),
            num_threads=case.threads,
        )
    except (DeviceUnavailableError, ImportError) as error:
        raise SkipError(str(error)) from error
