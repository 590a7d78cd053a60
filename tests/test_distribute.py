"""One data set for several replicas: arithmetic, errors, and MirroredStrategy in processes of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import dali_pipe as dp
import tf_bridge as tb
from tests import mirrored_run, support
from tf_bridge import cli, cluster
from tf_bridge.shard import Shard, all_have_some, dealt

RANDOM = dp.Recipe((dp.RandomCrop(16), dp.RandomFlip()), "uint8")
FIXED = dp.Recipe((dp.CenterCrop(16),), "uint8")


class TestShard:
    def test_is_the_tuple(self) -> None:
        shard = Shard(1, 4, seed=7, gpu=1)
        rank, replicas = shard
        assert shard == (1, 4) and (rank, replicas) == (1, 4) and (shard.seed, shard.gpu) == (7, 1)

    @pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8])
    def test_shares_come_out_even_wherever_they_can(self, replicas: int) -> None:
        for records in range(replicas, 12 * replicas):
            for per_replica in range(1, 6):
                batch = per_replica * replicas
                share = Shard(0, replicas, seed=0).share(batch, records, drop_remainder=False)
                assert 1 <= share <= per_replica and share * replicas <= records
                possible = [n for n in range(1, share + 1) if all_have_some(records, n, replicas)]
                assert all_have_some(records, share, replicas) or not possible
                if records >= batch:
                    assert Shard(0, replicas, seed=0).share(batch, records, drop_remainder=True) == per_replica

    @pytest.mark.parametrize(
        ("batch_size", "records", "drop", "words"),
        [
            (10, 50, True, "`batch_size` is the batch of all replicas and must divide .* batch_size=10, 4 replicas"),
            (8, 3, False, "Each replica must have a record. Received: 3 records, 4 replicas"),
            (8, 7, True, "must not exceed the number of records with drop_remainder=True. .* batch_size=8, 7 records"),
        ],
    )
    def test_what_cannot_be_dealt(self, batch_size: int, records: int, drop: bool, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            Shard(0, 4, seed=0).share(batch_size, records, drop)


@pytest.mark.parametrize(("records", "share", "replicas"), [(50, 4, 2), (50, 2, 4), (7, 3, 2), (5, 1, 4), (8, 8, 1)])
def test_rows_as_the_replicas_hand_them_out(records: int, share: int, replicas: int) -> None:
    strides = [np.arange(records)[rank::replicas] for rank in range(replicas)]
    steps = range(0, -(-records // replicas), share)
    expected = [place for step in steps for stride in strides for place in stride[step : step + share]]
    assert dealt(records, share, list(range(replicas))).tolist() == expected


@pytest.fixture(scope="module")
def strategy() -> Any:
    return tf.distribute.MirroredStrategy(["/cpu:0"])


class TestErrors:
    def distribute(self, files: list[Path], strategy: Any, **options: Any) -> tb.DistributedImages:
        options = {"recipe": RANDOM, "batch_size": 8, "engine": "tfdata", **options}
        return tb.distribute(strategy, lambda shard: tb.from_tfrecords(files, **{"shard": shard, **options}))

    def test_one_replica_is_the_data_set_itself(self, photographs: list[Path], strategy: Any) -> None:
        ds = self.distribute(photographs, strategy)
        plain = tb.from_tfrecords(photographs, recipe=RANDOM, batch_size=8, engine="tfdata", seed=ds.seed)
        ours, theirs = ([y.numpy().tolist() for _, y in data] for data in (ds, plain))
        assert ours == theirs
        assert "50 records, 6 batches of (8, 16, 16, 3) uint8, replicas [0] of 1, engine='tfdata'" in repr(ds)
        assert ds.identity == plain.identity

    def test_a_strategy_that_is_none(self, photographs: list[Path]) -> None:
        with pytest.raises(
            TypeError, match=r"`strategy` must be a MirroredStrategy .*one device needs no `distribute`"
        ):
            self.distribute(photographs, tf.distribute.get_strategy())

    def test_a_shard_not_passed_on(self, photographs: list[Path], strategy: Any) -> None:
        with pytest.raises(ValueError, match=re.escape("shard=shard). Received: shard=(1, 2) for (0, 1)")):
            self.distribute(photographs, strategy, shard=(1, 2))

    def test_what_map_makes(self, photographs: list[Path], strategy: Any) -> None:
        with pytest.raises(TypeError, match="`make` must return an ImageDataset"):
            tb.distribute(
                strategy,
                lambda shard: tb.from_tfrecords(photographs, recipe=RANDOM, batch_size=8, shard=shard).map(
                    lambda x, y: (x, y)
                ),
            )

    def test_rows_of_half_an_epoch(self, photographs: list[Path], strategy: Any) -> None:
        ds = self.distribute(photographs, strategy, recipe=FIXED)
        with pytest.raises(ValueError, match=r"of the whole epoch, 50 records. Received: 8 rows"):
            ds.in_order(np.zeros((8, 3)))


def run(engine: str, folder: Path, *checks: str) -> "subprocess.CompletedProcess[str]":
    """With everything TensorFlow says, and to the interpreter's own end."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mirrored_run", engine, str(folder), *checks],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(support.__file__).parent.parent,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert [f"passed: {name}" for name in checks] == [line for line in done.stdout.splitlines() if "passed" in line]
    assert not re.search("auto.?shard|unshardable|ran out of data", done.stderr, re.IGNORECASE), done.stderr
    return done


class TestMirrored:
    def test_does_what_one_device_does(self, photographs: list[Path]) -> None:
        """And does not take the process along when iterators are left in the middle, which used to crash."""
        folder = photographs[0].parent
        run("dali", folder, "the_same_images", "trains_as_one_device_does", "iterators_are_left_in_the_middle")

    @pytest.mark.slow
    def test_everything(self, photographs: list[Path], engine: Any) -> None:
        pytest.importorskip("tf_keras")
        run(engine, photographs[0].parent, *mirrored_run.CHECKS)


class TestCluster:
    def test_nobody_says_who_the_workers_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("TF_CONFIG", "SLURM_STEP_NODELIST"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ValueError, match=r"Several workers need TF_CONFIG .* or to be tasks of one SLURM step"):
            cluster.strategy("multiworker")

    def test_slurm_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
        for name, value in slurm(1, "n[1-2]", "2(x2)", 4).items():
            monkeypatch.setenv(name, value)
        resolver = cluster.resolver()
        workers = ["n1:20077", "n1:20078", "n2:20077", "n2:20078"]
        assert resolver.cluster_spec().as_dict() == {"worker": workers}
        assert (resolver.task_type, resolver.task_id) == ("worker", 1)

    def test_tf_config_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in slurm(0, "n1", "1", 1).items():
            monkeypatch.setenv(name, value)
        told = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(told))
        assert cluster.resolver().cluster_spec().as_dict() == told["cluster"]

    @pytest.mark.slow
    def test_the_command_with_two_workers(self, tfds_folder: Path, tmp_path: Path) -> None:
        """As SLURM would start them; then again, to go on with the run."""
        small = ["--size", "32", "--batch-size", "32", "--validation", "none", "--output", str(tmp_path / "run")]

        def train(*options: str) -> list[tuple[int, str, str]]:
            command = [sys.executable, "-m", "tf_bridge.cli", "train", str(tfds_folder), *small, *options]
            port = f"1{os.getpid() % 10_000:04d}"
            workers = [
                subprocess.Popen(
                    [*command, "--strategy", "multiworker"],
                    env={**os.environ, **slurm(rank, "localhost", "2", 2), "SLURM_JOB_ID": port},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(2)
            ]
            told = [worker.communicate(timeout=200) for worker in workers]
            return [(worker.returncode, *texts) for worker, texts in zip(workers, told, strict=True)]

        (code, out, err), (other, nothing, _) = train("--epochs", "1")
        assert (code, other) == (0, 0), err[-3000:]
        assert "Devices: 2 replicas, 32 images a step over all" in out and nothing == ""
        assert not re.search("auto.?shard", err, re.IGNORECASE)
        assert {file.name for file in (tmp_path / "run").iterdir()} >= {"best.keras", "last.keras", "state.npz"}
        (code, out, err), _ = train("--epochs", "2", "--resume")
        assert code == 0 and "Resume:  epoch 2 of 2, step 1 of 6" in out, err[-3000:]
        (code, _, err), (other, *_) = train("--epochs", "2", "--batch-size", "31")
        assert (code, other) == (2, 2) and "dali-tf: error: `batch_size` is the batch of all replicas" in err

    @pytest.mark.slow
    def test_the_command_on_one_machine(
        self, tfds_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        small = ["--size", "32", "--batch-size", "32", "--epochs", "1", "--output", str(tmp_path / "run")]
        assert cli.main(["train", str(tfds_folder), *small, "--strategy", "mirrored"]) == 0
        told = capsys.readouterr().out
        assert f"Devices: {max(1, len(tf.config.list_logical_devices('GPU')))} replicas, 32 images a step" in told


def slurm(rank: int, nodes: str, tasks_per_node: str, tasks: int) -> dict[str, str]:
    """What SLURM tells a task."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
    }
