from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dali_pipe import device
from tests import support


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or leaves anything in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DALI_TF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def _hide_gpus(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("nvidia.dali.backend.GetCUDADeviceCount", lambda: 0)
    patch.setenv("CUDA_VISIBLE_DEVICES", "")  # for processes that a test starts


@pytest.fixture(scope="session", autouse=True)
def _hidden_gpus() -> Iterator[pytest.MonkeyPatch]:
    device.dali_gpu_count()  # CUDA reads the variable when this process first asks it something, and never again
    with pytest.MonkeyPatch.context() as patch:
        _hide_gpus(patch)
        yield patch


@pytest.fixture(autouse=True)
def _gpu(request: pytest.FixtureRequest, _hidden_gpus: pytest.MonkeyPatch) -> Iterator[None]:
    """Data sets are on the CPU wherever the tests run, but in those that are marked `gpu`."""
    if not request.node.get_closest_marker("gpu"):
        yield
        return
    _hidden_gpus.undo()
    try:
        if not device.dali_gpu_count():
            pytest.skip("no GPU that DALI can use")
        yield
    finally:
        _hide_gpus(_hidden_gpus)


@pytest.fixture(params=["dali", "tfdata"])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """50 photographs of many sizes in three shards, labels 0 to 49."""
    sizes = [(40 + 7 * k % 90, 40 + 11 * k % 120) for k in range(50)]
    images = [support.photograph(k, h, w) for k, (h, w) in enumerate(sizes)]
    return support.write_shards(tmp_path_factory.mktemp("photographs"), images)


@pytest.fixture(scope="session")
def tfds_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TFDS data set written by TFDS: 203 train and 37 validation photographs in several shards, labels 0 to 9."""
    from tests import tfds_builder

    return tfds_builder.prepare(tmp_path_factory.mktemp("tensorflow_datasets"))


@pytest.fixture(scope="module")
def imagenette(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder in which TFDS's own builder prepared `imagenette/320px` from a local tree of photographs."""
    import tensorflow_datasets as tfds

    root = tmp_path_factory.mktemp("imagenette")
    names = tfds.core.tfds_path("image_classification/imagenette_labels.txt").read_text().split()
    for part, count in (("train", 3), ("val", 2)):
        for place, name in enumerate(names):
            folder = root / "extracted" / "imagenette-320" / part / name
            folder.mkdir(parents=True)
            for k in range(count):
                (folder / f"{name}_{k}.JPEG").write_bytes(support.photograph(10 * place + k, 40 + k, 50 + place))
    with pytest.MonkeyPatch.context() as patch:
        local = str(root / "extracted")
        patch.setattr(tfds.download.DownloadManager, "download_and_extract", lambda self, url: local)
        config = tfds.download.DownloadConfig(num_shards=2, compute_stats=tfds.download.ComputeStatsMode.SKIP)
        tfds.builder("imagenette/320px", data_dir=root / "data").download_and_prepare(download_config=config)
        yield root / "data"
