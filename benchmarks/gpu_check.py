"""What a machine with a GPU should be asked once: does the GPU graph run, is it right, what does it cost the host.

    python -m benchmarks.gpu_check [--data 'shards*.tfrecord'] [--seconds 600] [--output gpu_check.json]

It needs numpy, tqdm and DALI, and takes TensorFlow, torchvision and `nvidia-smi` along where they are. Cases run in
a process each, as a crash is one of the answers; the file is written again after each, so that a cut loses
nothing. Cases that lack something are skipped, and say so; those for which no time is left, too. The first cases are
those that matter most. At the end stands which goals were reached (`gpu_goals.py`). Without a GPU the model is small:
the case then only shows that it runs. Not yet run on a GPU.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import dali_pipe as dp
from benchmarks import gpu
from benchmarks.gpu_cases import Check, Setting, checks, missing, recipes
from benchmarks.gpu_goals import BATCH, WIDTH, verdicts
from benchmarks.rounds import ROOT, form
from dali_pipe.device import available_cores, dali_gpu_count
from tf_bridge import machine, parity_layers
from tf_bridge.locate import embedded

_LONGEST = 120.0  # seconds a case may take


def parity(check: Check, setting: Setting) -> dict[str, Any]:
    """How far the GPU's images are from the CPU's, in the batch's units, over an epoch; failed if beyond the bound."""
    import numpy as np

    from benchmarks.dali_alone import Epochs

    on_cpu = Check(kind="parity", name=check.name, recipe=check.recipe, dtype=check.dtype, device="cpu")
    reference, other = Epochs(on_cpu, setting), Epochs(check, setting)
    largest, total, values, labels = 0.0, 0.0, 0, True
    for _, one, two in zip(range(len(reference)), reference, other, strict=False):
        here, there = (np.asarray(batch[0].as_cpu().as_array(), np.float32) for batch in (one, two))
        difference = np.abs(here - there)
        largest, total = max(largest, float(difference.max())), total + float(difference.sum())
        values += here.size
        labels &= bool(np.allclose(one[1].as_cpu().as_array(), two[1].as_cpu().as_array(), rtol=0, atol=1e-6))
    limit, images = bound(check, setting), reference.batch_size * len(reference)
    found = {"largest": largest, "bound": limit, "mean": total / values, "labels_equal": labels, "images": images}
    if largest <= limit and labels:
        return found
    reason = f"apart by {largest:.4g}, more than {limit:.4g}" if labels else "the labels differ"
    return {"status": "failed", "reason": reason, **found}


def bound(check: Check, setting: Setting) -> float:
    """By how much the GPU's images may differ from the CPU's, in the batch's units."""
    recipe = recipes(setting.size)[check.recipe].with_dtype(check.dtype)
    sizes = dp.from_files(setting.data).sizes(recipe.exif)
    return parity_layers.bound(recipe, sizes, nvjpeg=check.device == "gpu" and check.decoder != "on the CPU")


def speed(check: Check, setting: Setting) -> dict[str, Any]:
    """Images a second, and what they cost the host."""
    from benchmarks.dali_alone import Epochs  # loads DALI, where it may be missing

    start = time.perf_counter()
    epochs = Epochs(check, setting)
    batches = iter(epochs)
    next(batches)
    first = time.perf_counter() - start
    for _ in range(10):
        next(batches)
    return {"first_batch_s": first, **_pace(lambda: next(batches), epochs.batch_size, setting.seconds)}


def _pace(step: Any, images: int, seconds: float) -> dict[str, Any]:
    """Of a step that gives some images."""
    began, cpu, steps = time.perf_counter(), time.process_time(), 0
    while not steps or time.perf_counter() - began < seconds:
        step()
        steps += 1
    took, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "images_per_second": steps * images / took,
        "cpu_ms_per_image": 1000 * used / (steps * images),
        "window": _window(took),
    }


def _window(seconds: float) -> tuple[float, float]:
    """The last seconds, by `time.time()`: when to look at the GPU."""
    now = time.time()
    return now - seconds, now


def torchvision_decode(check: Check, setting: Setting) -> dict[str, Any]:
    """nvJPEG by itself, whole images: the ceiling of the decoder."""
    import numpy as np
    import torch  # type: ignore[import-not-found,unused-ignore]
    from torchvision.io import decode_jpeg  # type: ignore[import-not-found,unused-ignore]

    from dali_pipe import reader

    records = dp.from_files(setting.data)
    places = np.arange(min(len(records), setting.batch_size))
    encoded = [torch.frombuffer(bytearray(image), dtype=torch.uint8) for image in reader.read_images(records, places)]

    def step() -> None:
        decode_jpeg(encoded, device="cuda")
        torch.cuda.synchronize()

    step()
    return _pace(step, len(encoded), setting.seconds)


def pipeline(check: Check, setting: Setting) -> dict[str, Any]:
    """A data set as TensorFlow iterates it; of tuned tf.data the fastest variant."""
    from benchmarks import pipelines
    from benchmarks.case import Case
    from tf_bridge.measure import measure

    size = min(setting.batch_size, len(dp.from_files(setting.data)))
    case = Case(
        pipeline=check.pipeline,
        data=setting.data,
        dtype=check.dtype,
        size=setting.size,
        batch_size=size,
        threads=available_cores(),
    )
    found = []
    for option in pipelines.TUNED_VARIANTS if check.pipeline == "tuned" else (f"dali/{check.device}",):
        dataset = pipelines.make(replace(case, option=option))
        speed = measure(dataset, warm_up=min(1.0, setting.seconds), seconds=setting.seconds)
        found.append({"variant": option, **speed._asdict(), "window": _window(speed.seconds)})
    return max(found, key=lambda variant: float(variant["images_per_second"]))


def fit(check: Check, setting: Setting) -> dict[str, Any]:
    """Steps of a ResNet-18 in `model.fit`: their time with the pipeline and with one batch again, and the wait."""
    import keras
    import tensorflow as tf

    import tf_bridge as tb
    from benchmarks.fitting import ready

    recipe = recipes(setting.size)["crop"]
    records = dp.from_files(setting.data)
    size = min(setting.batch_size, len(records))
    train = tb.from_records(records, recipe=recipe, batch_size=size, seed=0, device=check.device, repeat=True)
    model = tb.resnet18(int(records.labels.max()) + 1, recipe=recipe, width=setting.width)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def run(dataset: Any) -> "tb.InputMonitor":
        monitor = tb.InputMonitor(tell=None)
        # Two epochs: the first compiles.
        model.fit(dataset, epochs=2, steps_per_epoch=setting.steps, shuffle=False, verbose=0, callbacks=[monitor])
        return monitor

    real = run(train)
    window = _window(real.epochs[-1].seconds)
    alone = run(ready(train))
    return {
        "batch_size": size,
        "width": setting.width,
        "tensorflow_gpus": len(tf.config.list_physical_devices("GPU")),
        "engine": train.engine,
        "step_ms": 1000 * size / real.images_per_second,
        "cached_step_ms": 1000 * size / alone.images_per_second,
        "input_bound": max(0.0, 1 - real.images_per_second / alone.images_per_second),
        "input_wait": real.input_wait,
        "cpu_ms_per_image": statistics.median(epoch.cpu_ms_per_image for epoch in real.epochs[1:]),
        "window": window,
    }


RUN = {"parity": parity, "speed": speed, "torchvision": torchvision_decode, "pipeline": pipeline, "fit": fit}


@dataclass
class Report:
    """What was found, written again after each case."""

    path: Path
    setting: Setting
    machine: dict[str, Any] = field(default_factory=partial(machine.describe, ROOT))
    cases: list[dict[str, Any]] = field(default_factory=list)

    def begin(self) -> None:
        """Print what is measured and on what."""
        print(machine.one_line(self.machine))
        if not dali_gpu_count():
            print("There is no GPU that DALI can use: what follows is the CPU's, and tells nothing of a GPU.")
        setting = self.setting
        print(f"Crops of {setting.size}, batches of {setting.batch_size}, {setting.seconds:g} s for each speed.\n")
        print(f"{'what':11s} {'case':40s} {'status':8s} figures")

    def add(self, check: Check, outcome: dict[str, Any]) -> None:
        """Keep a case's outcome, and print it; what is skipped is summed up at the end."""
        self.cases.append({**asdict(check), **outcome})
        if outcome["status"] != "skipped":
            figures = {name: value for name, value in outcome.items() if name != "status"}
            print(f"{check.kind:11s} {check.name:40s} {outcome['status']:8s} {_short(figures)}", flush=True)
        goals = [verdict._asdict() for verdict in verdicts(self.cases)]
        whole = {"machine": self.machine, "setting": asdict(self.setting), "goals": goals, "cases": self.cases}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")

    def conclude(self) -> None:
        """Print what was skipped, and which goals were reached."""
        skipped = Counter(case["reason"] for case in self.cases if case["status"] == "skipped")
        for reason, count in skipped.items():
            print(f"{count} of {len(self.cases)} cases skipped: {reason}")
        print("\nGoals, each found (wanted):")
        for goal, target, found, verdict in verdicts(self.cases):
            print(f"{goal}: {'-' if found is None else f'{found:.3g}'} ({target}), {verdict}")


def _short(figures: dict[str, Any]) -> str:
    told = ((name, f"{value:{form(value)}}" if isinstance(value, float) else value) for name, value in figures.items())
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told)


def in_process(check: Check, setting: Setting, limit: float) -> dict[str, Any]:
    """Run a case in a process of its own; how it ended, what it found, and how busy the GPU was meanwhile."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--case", json.dumps([asdict(check), asdict(setting)])]
    with gpu.Watch() as watch:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return {"status": "failed", "reason": f"still running after {limit:.0f} s"}
    if done.returncode < 0:
        return {"status": "crashed", "reason": signal.Signals(-done.returncode).name}
    if done.returncode:
        return {"status": "failed", "reason": " ".join(done.stderr.split())[-500:] or f"exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    window = found.pop("window", (0.0, time.time()))
    return {"status": "ok", **found, **watch.within(*window)}


def run(report: Report, todo: Sequence[Check], seconds: float) -> None:
    """The cases in order, as far as the time goes."""
    end = time.monotonic() + seconds
    late = {"status": "skipped", "reason": f"the {seconds:.0f} s are used up"}
    for check in todo:
        left = end - time.monotonic()
        if reason := missing(check):
            report.add(check, {"status": "skipped", "reason": reason})
        elif left <= report.setting.seconds:
            report.add(check, late)
        else:
            outcome = in_process(check, report.setting, min(left, _LONGEST))
            cut = outcome["status"] == "failed" and time.monotonic() >= end  # for want of time, not by its own fault
            report.add(check, late if cut else outcome)


def _embedded() -> str:
    """The embedded data set's training shards; needs TensorFlow Datasets."""
    try:
        return f"{embedded()}/*-train.tfrecord-*"
    except ImportError as error:
        raise SystemExit(f"Without TensorFlow Datasets, `--data` must name TFRecord files ({error}).") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Ask everything; exit code 1 if a case failed or crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="TFRecord glob, features image and label; default: the embedded data set")
    parser.add_argument("--seconds", type=float, default=600.0, help="for everything")
    parser.add_argument("--case-seconds", type=float, default=4.0, help="that a speed is measured for")
    parser.add_argument("--size", type=int, default=224, help="pixels of the crop's side")
    parser.add_argument("--batch-size", type=int, help=f"images; default: {BATCH}, without a GPU 64")
    parser.add_argument("--width", type=int, help=f"channels of the model's first stage; default: {WIDTH}, or 16")
    parser.add_argument("--steps", type=int, help="of an epoch of `fit`; default: 60, or 5")
    parser.add_argument("--only", nargs="+", choices=list(RUN), default=list(RUN), help="kinds of cases")
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.case:
        check, shared = json.loads(arguments.case)
        print(json.dumps(RUN[check["kind"]](Check(**check), Setting(**shared))))
        return 0
    batch_size, width, steps = (BATCH, WIDTH, 60) if dali_gpu_count() else (64, 16, 5)
    setting = Setting(
        data=arguments.data or _embedded(),
        size=arguments.size,
        batch_size=arguments.batch_size or batch_size,
        seconds=arguments.case_seconds,
        width=arguments.width or width,
        steps=arguments.steps or steps,
    )
    report = Report(arguments.output, setting)
    report.begin()
    run(report, [check for check in checks() if check.kind in arguments.only], arguments.seconds)
    report.conclude()
    print(f"\nAll cases and figures: {arguments.output}")
    return int(any(case["status"] in ("failed", "crashed") for case in report.cases))


if __name__ == "__main__":
    sys.exit(main())
