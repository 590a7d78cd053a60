"""MultiWorkerMirroredStrategy: several processes on this machine, and one of them killed."""

import json
import multiprocessing
import socket
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tf_bridge as tb
from tests import support, worker_run
from tests.worker_run import EPOCHS, RANDOM, SHARE

PATIENCE = 100  # seconds


class Job:
    """Some workers of one run."""

    def __init__(self, name: str, workers: int, files: list[Path], folder: Path, engine: str = "tfdata"):
        self.folder, self.workers = folder, workers
        self.options = {"name": name, "files": [str(f) for f in files], "folder": str(folder), "engine": engine}

    def run(self, kill: int | None = None) -> tuple[list[int], list[float]]:
        """Exit codes, and when the workers ended after the first of them had, in seconds; `kill` is for the last."""
        context, ports = multiprocessing.get_context("forkserver"), free_ports(self.workers)
        context.set_forkserver_preload(["tests.preload"])
        processes = []
        for rank in range(self.workers):
            options = {**self.options, "rank": rank, "ports": ports, "kill": kill if rank == self.workers - 1 else None}
            code = f"from tests import worker_run\nworker_run.main(**{options!r})"
            (self.folder / f"{rank}").mkdir(exist_ok=True)
            processes.append(context.Process(target=support._execute, args=(code, self.folder / f"{rank}")))
        for process in processes:
            process.start()
        return self._ends(processes)

    def _ends(self, processes: list[Any]) -> tuple[list[int], list[float]]:
        ended: dict[int, float] = {}
        began = time.monotonic()
        while len(ended) < len(processes) and time.monotonic() < began + PATIENCE:
            for rank, process in enumerate(processes):
                if rank not in ended and not process.is_alive():
                    ended[rank] = time.monotonic()
            time.sleep(0.02)
        for process in processes:
            process.kill()
            process.join()
        first = min(ended.values(), default=began)
        return [p.exitcode for p in processes], [ended.get(rank, np.inf) - first for rank in range(len(processes))]

    def results(self) -> list[dict[str, Any]]:
        return [json.loads((self.folder / f"result-{rank}").read_text()) for rank in range(self.workers)]

    def errors(self, rank: int = 0) -> str:
        return (self.folder / f"{rank}" / "stderr").read_text(errors="replace")

    def finish(self) -> list[dict[str, Any]]:
        codes, _ = self.run()
        assert codes == [0] * self.workers, f"{codes}\n{self.errors()[-3000:]}\n{self.errors(1)[-2000:]}"
        return self.results()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def one_device(files: list[Path], batch: int, seed: int = 3) -> tuple[list[np.ndarray], list[float]]:
    """Weights and losses of the same training on one device."""
    model = worker_run.compiled(keras, keras.Model(*worker_run.layers(keras)))
    data = tb.from_tfrecords(files, recipe=RANDOM, batch_size=batch, seed=seed, engine="tfdata")
    losses = model.fit(data, epochs=EPOCHS, shuffle=False, verbose=0).history["loss"]
    return model.get_weights(), losses


def check(results: list[dict[str, Any]], weights: list[np.ndarray]) -> None:
    for result in results:
        assert result["weights"] == results[0]["weights"]
        if "numpy" in result:
            assert result["evaluate"] == pytest.approx(result["numpy"], rel=1e-6)
            assert result["predict"] < 1e-5
    for ours, theirs in zip(results[0]["weights"], weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def seen(folder: Path, rank: int) -> dict[int, list[list[int]]]:
    """Labels of the batches of each epoch that made the model: what a restart went back over is taken out."""
    epochs: dict[int, list[list[int]]] = {}
    epoch = 0
    for line in map(json.loads, (folder / f"seen-{rank}").read_text().splitlines()):
        if isinstance(line, list):
            epochs[epoch].append(line)
        elif "from" in line:
            first, step = line["from"]
            epochs = {e: batches for e, batches in epochs.items() if e <= first}
            epochs[first] = epochs.get(first, [])[:step]
        else:
            epoch = line["epoch"]
            epochs.setdefault(epoch, [])
    return epochs


@pytest.mark.slow
def test_a_worker_is_killed_and_the_run_goes_on(photographs: list[Path], tmp_path: Path) -> None:
    """In the second epoch; the other ends with an error, and together they go on to the weights of one device."""
    job = Job("keras_3_only_trains", 2, photographs, tmp_path, "dali")
    codes, after = job.run(kill=9)
    assert codes == [1, -9], job.errors()[-3000:]
    print(f"the other worker ended {after[0]:.1f} s after the kill")
    assert after[0] < 60
    results = job.finish()
    epochs = [seen(tmp_path, rank) for rank in (0, 1)]
    data = tb.from_tfrecords(photographs, recipe=RANDOM, batch_size=2 * SHARE, seed=3, engine="tfdata")
    for epoch, whole in enumerate([[y.numpy().tolist() for _, y in data] for _ in range(EPOCHS)]):
        assert epochs[0][epoch] == [batch[0::2] for batch in whole]
        assert epochs[1][epoch] == [batch[1::2] for batch in whole]
    weights, losses = one_device(photographs, 2 * SHARE)
    check(results, weights)
    assert [logs["loss"] for logs in results[0]["history"]] == pytest.approx(losses, rel=1e-5)
    assert '{"from": [1, 2]}' in (tmp_path / "seen-0").read_text()
    assert "shard" not in job.errors().lower()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", ["keras_3", "tf_keras"])
def test_trains_as_one_device_does(
    photographs: list[Path], tmp_path: Path, engine: str, name: str, workers: int
) -> None:
    if name == "tf_keras":
        pytest.importorskip("tf_keras")
    results = Job(name, workers, photographs, tmp_path, engine).finish()
    check(results, one_device(photographs, workers * SHARE)[0])


@pytest.mark.slow
def test_a_loop_of_one_s_own(photographs: list[Path], tmp_path: Path) -> None:
    results = Job("own_loop", 2, photographs, tmp_path).finish()
    weights, losses = one_device(photographs, 2 * SHARE, results[0]["seed"])
    assert results[1]["seed"] == results[0]["seed"]
    assert [result["seen"] for result in results] == [[[0], [2], [4]], [[1], [3], []]]
    check(results, weights)
    assert results[0]["history"]["loss"] == pytest.approx(losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [("unprepared", "model = tb.across_workers(model)"), ("other_data", "All workers must make the same data set")],
)
def test_what_cannot_work_says_so(photographs: list[Path], tmp_path: Path, name: str, words: str) -> None:
    assert all(words in result["error"] for result in Job(name, 2, photographs, tmp_path).finish())
