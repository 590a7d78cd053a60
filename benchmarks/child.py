"""One case in a process of its own: `python -m benchmarks.child TASK`, a task and what came of it being lines of JSON.

A task is `{"case": …, "measure": "speed", …, "began": …, …}`; `began` is when the process was started, by
`time.time()`.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported

from benchmarks import pipelines, share
from benchmarks.case import Case, SkipError
from tf_bridge import measure

Found = dict[str, Any]


def speed(case: Case, task: dict[str, Any]) -> Found:
    """Images a second, CPU, memory, and how long the start took."""
    dataset = pipelines.make(case)
    start = time.time() - task["began"]
    before = time.time()
    found = measure.measure(dataset, warm_up=task["warm_up"], seconds=task["seconds"])
    return {
        **found._asdict(),
        "start_seconds": start,
        "auto": case.pipeline == "ours" and _is_auto(case),
        "window": [before + found.first_batch_seconds + task["warm_up"], time.time()],
    }


def _is_auto(case: Case) -> bool:
    """Whether the case has the engine and device that `auto` takes for its recipe."""
    from tf_bridge.choice import choose

    chosen = choose("auto", "auto", case.ours)
    return case.option == f"{chosen.engine}/{chosen.device}"


def simulated(case: Case, task: dict[str, Any]) -> Found:
    """The input-bound share of a stand-in accelerator of `accelerator` images a second."""
    busy = case.batch_size / task["accelerator"]
    return share.simulated(pipelines.make(case), busy, warm_up=task["warm_up"], seconds=task["seconds"])


def fit(case: Case, task: dict[str, Any]) -> Found:
    """The input-bound share of `model.fit`."""
    from benchmarks import fitting  # loads Keras

    return fitting.fitted(case, steps=task["steps"], width=task["width"], logs=task.get("logs"))


def view(case: Case, task: dict[str, Any]) -> Found:
    """What a view of `records` records in `shards` shards costs before it gives a batch."""
    from benchmarks import views

    return views.costs(case, task["records"], task["shards"])


def index(case: Case, task: dict[str, Any]) -> Found:
    """Our scan of a shard's frames against NVIDIA's `tfrecord2idx`."""
    from benchmarks import views

    return views.index(case)


Measure = Callable[[Case, dict[str, Any]], Found]
MEASURES: dict[str, Measure] = {"speed": speed, "simulated": simulated, "fit": fit, "view": view, "index": index}


def run(task: dict[str, Any]) -> Found:
    """Do a task here; a case that cannot run gives `{"skipped": reason}`."""
    try:
        return MEASURES[task["measure"]](Case(**task["case"]), task)
    except SkipError as reason:
        return {"skipped": str(reason)}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # what a pipeline's threads and workers do at the end is not measured, and may take seconds
