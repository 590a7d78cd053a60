"""One recipe means the same pixels on every engine: one case list, held against numpy, whole random epochs.

The draws ride the ticket, so nothing has to be forced: the epoch that `reference.epoch` computes is *the* epoch.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import dali_pipe as dp
import tf_bridge as tb
from dali_pipe.batch_ops import Mix
from tests import reference, support
from tf_bridge.choice import EngineName

BATCH = 16  # 50 records: the last batch holds two
CROP = dp.RandomCrop(32)

Epoch: TypeAlias = tuple[np.ndarray, np.ndarray]  # images and labels, in order


def recipe(*ops: dp.Op, **options: Any) -> dp.Recipe:
    return dp.Recipe(ops, **{"dtype": "uint8", **options})


# name -> recipe, largest difference allowed in grey levels
CASES: dict[str, tuple[dp.Recipe, float]] = {
    "random crop": (recipe(CROP), 0),
    "center crop": (recipe(dp.CenterCrop(31)), 0),
    "crop and flip": (recipe(CROP, dp.RandomFlip(0.5, 0.5)), 0),
    "vertical flip": (recipe(CROP, dp.RandomFlip(0.0, 1.0)), 0),
    "pad": (recipe(dp.Pad(((3, 5), (0, 9)), fill=77), CROP), 0),
    "cifar's pad, crop, flip": (recipe(dp.CenterCrop(36), dp.Pad(4), dp.RandomCrop(36), dp.RandomFlip()), 0),
    "erasing": (recipe(CROP, dp.RandomErasing(0.8, fill=128)), 0),
    "brightness": (recipe(CROP, dp.RandomBrightness(-0.5, 0.5)), 0),
    "contrast": (recipe(CROP, dp.RandomContrast(0.2, 2.0)), 1),
    "contrast before the crop": (recipe(dp.RandomContrast(0.2, 2.0), CROP), 1),
    "saturation": (recipe(CROP, dp.RandomSaturation(0.0, 2.5)), 1),
    "hue": (recipe(CROP, dp.RandomHue(-0.5, 0.5)), 1),
    "grayscale": (recipe(CROP, dp.Grayscale()), 1),
    "resize": (recipe(dp.Resize((40, 52))), 1),
    "shorter side": (recipe(dp.ResizeShorter(45), dp.CenterCrop(40)), 1),
    "random resized crop": (recipe(dp.RandomResizedCrop(32)), 1),
    "crop of small images": (recipe(dp.RandomCrop((64, 48))), 1),
    "rotation": (recipe(dp.RandomRotation(-45, 45, fill=90), CROP), 1),
    "rotation of the crop": (recipe(CROP, dp.RandomRotation(-180, 180)), 1),
    "mixup": (recipe(CROP, label=dp.OneHot(50, 0.1), mix=dp.MixUp(1.0)), 1),
    "cutmix": (recipe(CROP, label=dp.OneHot(50), mix=dp.CutMix()), 0),
    "one-hot": (recipe(CROP, label=dp.OneHot(60, 0.2)), 0),
    "fast transform": (recipe(CROP, dct="fast"), 0),
    "normalize": (recipe(CROP, dp.Normalize(), dtype="float32"), 1e-6),
}


def epoch(shards: list[Path], rec: dp.Recipe, engine: EngineName, **options: Any) -> Epoch:
    options = {"batch_size": BATCH, "seed": 11, "shuffle": True, "drop_remainder": False, **options}
    ds = tb.from_tfrecords(shards, recipe=rec, engine=engine, **options)
    images, labels = zip(*[(x.numpy(), y.numpy()) for x, y in ds], strict=True)
    return np.concatenate(images), np.concatenate(labels)


def expected(shards: list[Path], rec: dp.Recipe) -> Epoch:
    plan = dp.Plan(dp.from_files([str(s) for s in shards]), rec, seed=11)
    return reference.epoch(plan, 0, BATCH)


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a.astype(np.float64) - b.astype(np.float64))


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    """A name in `CASES`; the module's, so that pytest runs all tests of one together and each epoch is made once."""
    return request.param


@pytest.fixture(scope="module")
def epoch_of(photographs: list[Path], case: str) -> Callable[[EngineName], Epoch]:
    return cache(lambda engine: epoch(photographs, CASES[case][0], engine))


@pytest.fixture(scope="module")
def in_five_shards(photographs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same records in other files."""
    payloads = [r.numpy() for r in tf.data.TFRecordDataset([str(s) for s in photographs])]
    folder = tmp_path_factory.mktemp("five")
    return [support.write_shard(folder / f"{k}.tfrecord", payloads[k : k + 10]) for k in range(0, 50, 10)]


def test_a_random_epoch_is_the_reference_s(
    photographs: list[Path], case: str, engine: EngineName, epoch_of: Callable[[EngineName], Epoch]
) -> None:
    rec, bound = CASES[case]
    images, labels = epoch_of(engine)
    right, right_labels = expected(photographs, rec)
    assert images.shape == right.shape == (50, *rec.output_shape)
    assert difference(images, right).max() <= bound
    np.testing.assert_allclose(labels, right_labels, rtol=1e-6)


def test_engines_agree_with_each_other(case: str, epoch_of: Callable[[EngineName], Epoch]) -> None:
    """Bit for bit where the reference is met exactly; and where not, rarely apart."""
    (dali, dali_labels), (tfdata, tfdata_labels) = epoch_of("dali"), epoch_of("tfdata")
    apart = difference(dali, tfdata)
    assert apart.max() <= CASES[case][1]
    assert (apart > 0).mean() < 0.02
    np.testing.assert_allclose(dali_labels, tfdata_labels, rtol=1e-6)


def test_epochs_are_identical_however_they_are_made(
    in_five_shards: list[Path], case: str, engine: EngineName, epoch_of: Callable[[EngineName], Epoch]
) -> None:
    """Threads, shards; and the batch size, unless the recipe mixes within batches."""
    rec, _ = CASES[case]
    images, labels = epoch_of(engine)
    other = epoch(in_five_shards, rec, engine, num_threads=1, batch_size=BATCH if rec.mix else 7)
    np.testing.assert_array_equal(images, other[0])
    np.testing.assert_array_equal(labels, other[1])


def test_every_op_has_a_case() -> None:
    tried = {type(part) for rec, _ in CASES.values() for part in (*rec.ops, rec.label, rec.mix)}
    public = {value for value in map(dp.__getattr__, dp.__all__) if isinstance(value, type)}
    assert {cls for cls in public if issubclass(cls, dp.Op | dp.OneHot | Mix)} - {dp.Op} <= tried


@pytest.mark.parametrize("preset", [dp.crop_train, dp.crop_eval, dp.imagenet_train, dp.imagenet_eval])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_presets(photographs: list[Path], engine: EngineName, preset: Any, dtype: Any) -> None:
    rec = preset(28, dtype)
    images, _ = epoch(photographs, rec, engine)
    right, _ = expected(photographs, rec)
    grey = 0 if preset in (dp.crop_train, dp.crop_eval) else 1
    rounding = {"float32": 1e-6, "float16": 2e-3}[dtype]
    assert images.dtype == dtype
    assert difference(images, right).max() <= grey / min(dp.IMAGENET_STD) + rounding


class TestNormalize:
    def test_is_its_formula_within_one_ulp(self, photographs: list[Path], engine: EngineName) -> None:
        x, _ = epoch(photographs, recipe(CROP), engine)
        normalised, _ = epoch(photographs, dp.crop_train(32), engine)
        mean, std = (np.array(v, np.float32) for v in (dp.IMAGENET_MEAN, dp.IMAGENET_STD))
        right = (x.astype(np.float32) - mean) * (np.float32(1) / std)
        np.testing.assert_array_max_ulp(normalised, right, maxulp=1)

    def test_is_the_usual_code_s_within_a_millionth(self, photographs: list[Path], engine: EngineName) -> None:
        """x / 255, minus the mean, over the deviation, as people write it."""
        x, _ = epoch(photographs, recipe(CROP), engine)
        normalised, _ = epoch(photographs, dp.crop_train(32), engine)
        mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
        usual = (x.astype(np.float32) / 255 - mean) / std
        assert difference(normalised, usual).max() <= 1e-6


class TestDecoding:
    """The whole picture, so that nothing but the decoder is compared."""

    FORMATS: tuple[tuple[str, dict[str, Any]], ...] = (
        ("RGB", {}),
        ("RGB", {"subsampling": 0}),
        ("RGB", {"subsampling": 1}),
        ("RGB", {"progressive": True}),
        ("RGB", {"quality": 40}),
        ("L", {}),
        ("CMYK", {}),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def shards(cls, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
        images = []
        for k, (mode, options) in enumerate(cls.FORMATS):
            pixels = tf.io.decode_jpeg(support.photograph(k, 97, 131, quality=95)).numpy()
            images.append(support.jpeg(Image.fromarray(pixels).convert(mode), **options))
        return support.write_shards(tmp_path_factory.mktemp("formats"), images, shards=1)

    @pytest.mark.parametrize("dct", ["accurate", "fast"])
    def test_is_bit_exact(self, shards: list[Path], engine: EngineName, dct: Any) -> None:
        rec = recipe(dp.CenterCrop((97, 131)), dct=dct)
        images, _ = epoch(shards, rec, engine)
        np.testing.assert_array_equal(images, expected(shards, rec)[0])

    @pytest.mark.parametrize("dct", ["accurate", "fast"])
    def test_of_a_region_is_a_slice_of_the_whole(self, shards: list[Path], engine: EngineName, dct: Any) -> None:
        rec = recipe(dp.RandomCrop((40, 50)), dct=dct)
        for number in range(4):
            ds = tb.from_tfrecords(shards, recipe=rec, batch_size=8, seed=number, engine=engine, drop_remainder=False)
            plan = dp.Plan(ds.records, rec, seed=number)
            ((images, _),) = list(ds)
            np.testing.assert_array_equal(images, reference.epoch(plan, 0, 8)[0])

    def test_the_two_transforms_differ(self, shards: list[Path], engine: EngineName) -> None:
        """So that the setting is known to reach the decoder."""
        fast, accurate = (
            epoch(shards, recipe(dp.CenterCrop((97, 131)), dct=d), engine)[0] for d in ("fast", "accurate")
        )
        assert difference(fast, accurate).max() > 0


class TestOrientation:
    @pytest.fixture(scope="class")
    @classmethod
    def shards(cls, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
        images = []
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[274] = orientation
            images.append(support.photograph(orientation, 60, 84, exif=exif.tobytes()))
        return support.write_shards(tmp_path_factory.mktemp("orientations"), images, shards=1)

    @pytest.mark.parametrize("exif", [False, True])
    @pytest.mark.parametrize("op", [dp.RandomCrop((41, 37)), dp.CenterCrop((40, 36))])
    def test_means_the_same_everywhere(self, shards: list[Path], engine: EngineName, exif: bool, op: dp.Op) -> None:
        rec = recipe(op, exif=exif)
        np.testing.assert_array_equal(epoch(shards, rec, engine)[0], expected(shards, rec)[0])

    def test_whole_images_too(self, shards: list[Path], engine: EngineName) -> None:
        rec = recipe(dp.ResizeShorter(50), dp.CenterCrop(48), exif=True)
        assert difference(epoch(shards, rec, engine)[0], expected(shards, rec)[0]).max() <= 1

    def test_is_off_by_default(self) -> None:
        assert dp.Recipe((dp.CenterCrop(8),)).exif is False


def test_antialias_reaches_both_engines(photographs: list[Path], engine: EngineName) -> None:
    plain, smooth = (
        epoch(photographs, recipe(dp.RandomResizedCrop(16, antialias=a)), engine)[0] for a in (False, True)
    )
    assert difference(plain, smooth).mean() > 1
