"""The strategy that a command trains with. Ranks and addresses are the job's, as its scheduler gives them."""

import os
from typing import Literal

import tensorflow as tf

StrategyName = Literal["one", "mirrored", "multiworker"]
_FIRST_PORT, _PORTS = 20_000, 10_000
# GPUs are SLURM's to bind to tasks. The resolver would divide those it sees once more, unless it is told of enough.
_ANY_TASKS = 1024


def strategy(name: StrategyName) -> tf.distribute.Strategy | None:
    """A strategy over what there is; None for one device. Must come before anything that TensorFlow computes.

    Args:
        name: "mirrored" takes all GPUs of this machine; "multiworker" joins the job that `TF_CONFIG`, or SLURM, tells.

    Raises:
        ValueError: nothing says which workers there are.
    """
    if name == "one":
        return None
    if name == "mirrored":
        return tf.distribute.MirroredStrategy()
    return tf.distribute.MultiWorkerMirroredStrategy(resolver())


def resolver() -> tf.distribute.cluster_resolver.ClusterResolver:
    """Where the workers are: of `TF_CONFIG` (Kubernetes, Kubeflow, by hand), else of a SLURM step.

    Raises:
        ValueError: the environment tells of neither.
    """
    if os.environ.get("TF_CONFIG"):
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if "SLURM_STEP_NODELIST" not in os.environ:
        raise ValueError(
            "Several workers need TF_CONFIG in each one's environment, or to be tasks of one SLURM step (srun). "
            "Received: neither"
        )
    # Jobs may share a node, so each has ports of its own.
    port = _FIRST_PORT + int(os.environ.get("SLURM_JOB_ID", "0")) % _PORTS
    return tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=port, gpus_per_node=_ANY_TASKS, gpus_per_task=1, auto_set_gpu=False
    )


def is_chief(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether this process writes the job's files."""
    return strategy is None or bool(strategy.extended.should_checkpoint)
