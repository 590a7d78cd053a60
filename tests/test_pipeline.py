"""Recipes as DALI graphs: run on the CPU against coordinates, and built for a GPU that is not there."""

import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from nvidia.dali import Pipeline
from nvidia.dali import backend as dali_backend
from PIL import Image, ImageOps

import dali_pipe as dp
from dali_pipe import Plan, Recipe, Records, batch_ops, color_ops, ops, pipeline, plan, reader
from dali_pipe.geometry import Ints
from dali_pipe.index_files import IndexFiles
from tests import odd_images, support
from tf_bridge import tfdata_engine

BATCH = 4
SIZES = [(60, 80), (200, 90), (64, 64), (50, 40), (30, 200), (255, 255), (41, 43), (90, 64), (77, 130), (120, 51)]


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Ten images whose pixels are their coordinates, in three shards."""
    images = [support.jpeg(support.coordinates(*size)) for size in SIZES]
    return dp.from_files(support.write_shards(tmp_path_factory.mktemp("coordinates"), images))


def _build(records: Records, rec: Recipe, order: Ints, device: pipeline.Kind = "cpu") -> Pipeline:
    """A pipeline over the native reader; `order` is filled up to whole batches."""
    filled = np.pad(order, (0, -len(order) % BATCH), "edge")
    files = IndexFiles(records)
    feed = pipeline.native_feed(*files.write(filled), "image", padded=len(filled) != len(order))
    small = rec.undersized(records.sizes(rec.exif))
    return pipeline.build(feed, rec, batch_size=BATCH, num_threads=2, device=device, undersized=small)


def _run(pipe: Pipeline, rows: NDArray[Any]) -> tuple[list[NDArray[Any]], list[int]]:
    """Images and labels of the batches whose tickets, or rows, these are."""
    batches = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
    for batch in [*batches, *[batches[-1]] * pipe.prefetch_queue_depth]:  # DALI works ahead
        pipe.feed_input(pipeline.INPUT, batch)
    images, labels = list[NDArray[Any]](), list[int]()
    for _ in batches:
        image, label = (output.as_cpu() for output in pipe.run())
        images += [np.array(image.at(k)) for k in range(len(image))]
        labels += label.as_array().tolist()
    return images, labels


def _epoch(records: Records, rec: Recipe, device: pipeline.Kind = "cpu") -> tuple[list[NDArray[Any]], list[int], Ints]:
    """Images, labels and tickets of epoch 1 with a true partial batch."""
    epochs = Plan(records, rec, seed=3)
    order = epochs.order(1)
    tickets = epochs.tickets(1, order, BATCH)
    padding = np.repeat(tickets[-1:], -len(order) % BATCH, axis=0)
    padding[:, plan.KEEP] = 0
    images, labels = _run(_build(records, rec, order, device), np.concatenate([tickets, padding]))
    return images, labels, tickets


def _resized(places: NDArray[Any], size: int) -> NDArray[Any]:
    """Linear, without antialias."""
    at = (np.arange(size) + 0.5) * len(places) / size - 0.5
    resized: NDArray[Any] = np.interp(at, np.arange(len(places)), places)
    return resized


def _followed(rec: Recipe, parameters: list[int], size: tuple[int, int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Which row and column of the image each row and column of the result shows."""
    y, x = np.arange(size[0], dtype=float), np.arange(size[1], dtype=float)
    for op in rec.ops:
        lanes, parameters = parameters[: op.lanes], parameters[op.lanes :]
        if op.lanes == 4:
            top, left, height, width = lanes
            y, x = y[top : top + height], x[left : left + width]
        if isinstance(op, dp.RandomFlip):
            x = x[::-1] if lanes[0] else x
            y = y[::-1] if lanes[1] else y
        new = lanes if isinstance(op, dp.ResizeShorter) else op.output((len(y), len(x)))
        y, x = _resized(y, new[0] or 0), _resized(x, new[1] or 0)
    return y, x


RECIPES = {
    "center crop": Recipe((dp.CenterCrop((30, 40)),), "uint8"),
    "center crop of small images": Recipe((dp.CenterCrop(64),), "uint8"),
    "random crop": Recipe((dp.RandomCrop((30, 40)),), "uint8"),
    "random crop of small images": Recipe((dp.RandomCrop((70, 40)), dp.RandomFlip()), "uint8"),
    "random resized crop": Recipe((dp.RandomResizedCrop(48), dp.RandomFlip(0.3)), "uint8"),
    "resize": Recipe((dp.Resize((40, 90)), dp.RandomFlip()), "uint8"),
    "flips": Recipe((dp.RandomFlip(0.0, 0.5), dp.RandomCrop(30), dp.RandomFlip(0.5, 0.6)), "uint8"),
    "shorter side": Recipe((dp.ResizeShorter(50), dp.CenterCrop(48)), "uint8"),
    "a crop behind": Recipe((dp.RandomFlip(1.0), dp.RandomCrop(64), dp.ResizeShorter(32)), "uint8"),
    "many": Recipe((dp.Resize(99), dp.RandomCrop(80), dp.RandomFlip(), dp.RandomResizedCrop(60)), "uint8"),
}


@pytest.mark.parametrize("rec", RECIPES.values(), ids=RECIPES)
def test_every_result_shows_the_window_of_its_ticket(view: Records, rec: Recipe) -> None:
    images, labels, tickets = _epoch(view, rec)
    assert sorted(labels) == list(range(10))
    for image, label, ticket in zip(images, labels, tickets.tolist(), strict=True):
        assert ticket[plan.LABEL] == label
        assert image.shape == rec.output_shape
        assert image.dtype == np.uint8
        y, x = _followed(rec, ticket[plan.FIRST_PARAMETER :], SIZES[label])
        for channel, expected in ((0, x[None, :]), (1, y[:, None])):
            error = image[..., channel] - expected
            assert np.abs(error).max() < 3.5, (label, channel)  # JPEG, and rounding after each resize
            assert abs(error.mean()) < 0.6, (label, channel)


def _decoded(records: Records, label: int) -> NDArray[np.uint8]:
    (data,) = reader.read_images(records, np.array([label]))
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data.tobytes()))).convert("RGB"))


@pytest.mark.parametrize("first", [(), (dp.RandomFlip(0.0),)], ids=["region decode", "whole decode"])
def test_crops_are_the_decoded_image_bit_by_bit(view: Records, first: tuple[dp.Op, ...]) -> None:
    images, labels, tickets = _epoch(view, Recipe((*first, dp.RandomCrop(30)), "uint8"))
    for image, label, ticket in zip(images, labels, tickets.tolist(), strict=True):
        y, x = ticket[-4:-2]
        np.testing.assert_array_equal(image, _decoded(view, label)[y : y + 30, x : x + 30])


def _linear(pixels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Each channel resized along its columns, then along its rows."""
    for axis in (0, 1):
        pixels = np.apply_along_axis(_resized, axis, pixels, size[axis])
    return pixels


def test_resizes_are_linear(photographs: list[Path]) -> None:
    records = dp.from_files(photographs).take(8)
    images, labels, _ = _epoch(records, Recipe((dp.Resize((50, 90)),), "uint8"))
    for image, label in zip(images, labels, strict=True):
        error = image - _linear(_decoded(records, label), (50, 90))
        assert np.abs(error).max() < 1.01


def _grey(pixels: NDArray[Any]) -> NDArray[Any]:
    grey: NDArray[Any] = tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(pixels.astype(np.float32))).numpy()
    return grey


# An op whose draws are forced, and what numpy or TensorFlow makes of a square image; they may be a grey level apart.
NAMESAKES: dict[dp.Op, Callable[[NDArray[Any]], Any]] = {
    dp.RandomFlip(1.0, 0.0): np.fliplr,
    dp.RandomFlip(0.0, 1.0): np.flipud,
    dp.RandomFlip(1.0, 1.0): lambda x: np.rot90(x, 2),
    dp.RandomRotation(90, 90): np.rot90,
    dp.RandomRotation(-90, -90): lambda x: np.rot90(x, -1),
    dp.RandomRotation(360, 360): lambda x: x,
    dp.Pad(((1, 2), (3, 4)), fill=9): lambda x: np.pad(x, ((1, 2), (3, 4), (0, 0)), constant_values=9),
    dp.RandomErasing(0.0): lambda x: x,
    dp.RandomErasing(1.0, (0.999, 0.999), (1.0, 1.0)): lambda x: x,  # as large as the image: none is smaller
    dp.RandomBrightness(0.3, 0.3): lambda x: 255 * tf.image.adjust_brightness(x / 255, 77 / 255),
    dp.RandomBrightness(-1.0, -1.0): np.zeros_like,
    dp.RandomContrast(1.7, 1.7): lambda x: tf.image.adjust_contrast(x.astype(np.float32), 1.7),
    dp.RandomContrast(0.0, 0.0): lambda x: np.broadcast_to(x.mean((0, 1)), x.shape),
    dp.RandomSaturation(0.0, 0.0): _grey,
    dp.RandomSaturation(1.0, 1.0): lambda x: x,
    dp.RandomSaturation(1.5, 1.5): lambda x: 1.5 * x - 0.5 * _grey(x),
    dp.RandomHue(0.0, 0.0): lambda x: x,
    dp.Grayscale(): _grey,
}


@pytest.mark.parametrize("op", NAMESAKES, ids=str)
def test_an_op_is_what_it_is_called(photographs: list[Path], op: dp.Op) -> None:
    records = dp.from_files(photographs).take(8)
    images, *_ = _epoch(records, Recipe((dp.CenterCrop(31), op), "uint8"))
    plain, *_ = _epoch(records, Recipe((dp.CenterCrop(31),), "uint8"))
    for image, pixels in zip(images, plain, strict=True):
        assert np.abs(image - np.clip(NAMESAKES[op](pixels), 0.0, 255.0)).max() < 1.01


@pytest.mark.parametrize("op", [dp.Resize, dp.ResizeShorter, dp.RandomResizedCrop])
def test_antialiasing_smooths(photographs: list[Path], op: Any) -> None:
    records = dp.from_files(photographs).select([30, 40, 45, 49])
    spread = []
    for antialias in (False, True):
        images, *_ = _epoch(records, Recipe((op(20, antialias=antialias), dp.CenterCrop(16)), "uint8"))
        spread.append(np.abs(np.diff(np.stack(images).astype(float), axis=2)).mean())
    assert spread[1] < 0.97 * spread[0]


@pytest.mark.parametrize("turn", range(1, 9))
def test_images_are_turned_before_they_are_cut(tmp_path: Path, turn: int) -> None:
    image = odd_images.turned(turn, Image.open(io.BytesIO(support.photograph(5, 48, 64))))
    records = dp.from_files(support.write_shards(tmp_path, [image] * 4))
    images, _, tickets = _epoch(records, Recipe((dp.RandomCrop(40),), "uint8", exif=True))
    for result, (y, x) in zip(images, tickets[:, 2:4].tolist(), strict=True):
        np.testing.assert_array_equal(result, _decoded(records, 0)[y : y + 40, x : x + 40])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.0), ("float16", 2e-3)])
def test_normalised_images(view: Records, dtype: Any, tolerance: float) -> None:
    normalize = dp.Normalize(mean=(10.0, 20.0, 30.0), std=(2.0, 40.0, 70.0))
    raw, *_ = _epoch(view, Recipe((dp.RandomCrop(30),), "uint8"))
    images, *_ = _epoch(view, Recipe((dp.RandomCrop(30), normalize), dtype))
    mean, scale = np.array(normalize.mean, np.float32), np.float32(1) / np.array(normalize.std, np.float32)
    for image, pixels in zip(images, raw, strict=True):
        assert image.dtype == dtype
        np.testing.assert_allclose(image, (pixels - mean) * scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_without_a_normalisation_values_stay(view: Records, dtype: Any) -> None:
    raw, *_ = _epoch(view, Recipe((dp.RandomCrop(30),), "uint8"))
    images, *_ = _epoch(view, Recipe((dp.RandomCrop(30),), dtype))
    assert {image.dtype for image in images} == {np.dtype(dtype)}
    np.testing.assert_array_equal(images, raw)


def test_a_uint8_recipe_leaves_out_its_normalisation(view: Records) -> None:
    raw, *_ = _epoch(view, Recipe((dp.RandomCrop(30),), "uint8"))
    images, *_ = _epoch(view, dp.crop_train(30, "uint8"))
    np.testing.assert_array_equal(images, raw)


def test_the_fast_transform_is_another(photographs: list[Path]) -> None:
    records = dp.from_files(photographs).take(8)
    crop = (dp.CenterCrop(32),)
    accurate, *_ = _epoch(records, Recipe(crop, "uint8"))
    fast, *_ = _epoch(records, Recipe(crop, "uint8", dct="fast"))
    difference = np.abs(np.stack(accurate).astype(int) - np.stack(fast))
    assert 0.1 < difference.mean() < 3


@pytest.mark.parametrize("rec", RECIPES.values(), ids=RECIPES)
def test_images_fed_from_memory_give_the_same(view: Records, rec: Recipe) -> None:
    images, labels, tickets = _epoch(view, rec)
    small = rec.undersized(view.sizes(rec.exif))
    pipe = pipeline.build(pipeline.memory_feed, rec, batch_size=len(labels), num_threads=2, undersized=small)
    held = reader.read_images(view, np.array(labels)), np.ascontiguousarray(tickets)
    for _ in range(pipe.prefetch_queue_depth):
        pipe.feed_input(pipeline.ENCODED, held[0])
        pipe.feed_input(pipeline.INPUT, held[1])
    fed, fed_labels = (output.as_array() for output in pipe.run())
    assert fed_labels.tolist() == labels
    np.testing.assert_array_equal(fed, images)


def test_what_cannot_be_built_raises_here(view: Records, tmp_path: Path) -> None:
    files = IndexFiles(view)  # whose folder goes with it
    _, index = files.write(np.arange(10))
    feed = pipeline.native_feed([str(tmp_path / "gone")] * len(index), index, "image", padded=False)
    with pytest.raises(RuntimeError, match=r"Could not open file .*/gone"):
        pipeline.build(feed, dp.crop_train(30), batch_size=BATCH, num_threads=2)


PRESETS = {
    "crop_train": (dp.crop_train(64), ["Slice"]),
    "crop_eval": (dp.crop_eval(64), ["Slice"]),
    "imagenet_train": (dp.imagenet_train(64), ["Slice", "Resize", "Flip"]),
    "imagenet_eval": (dp.imagenet_eval(64), ["Resize", "Slice"]),
}
SMALL = ["_conditional__Split", "Resize", "_conditional__Merge"]  # what a crop of small images needs


def _operators(
    rec: Recipe, feed: pipeline.Feed, device: pipeline.Kind, undersized: frozenset[int] = frozenset()
) -> list[tuple[str, str]]:
    """Each op of a graph, and where it runs."""
    pipe = Pipeline(batch_size=BATCH, num_threads=2, device_id=None)
    with pipe:
        pipe.set_outputs(*pipeline.graph(feed, rec, device, undersized))
    pipe.serialize()
    assert [device for _, device in pipe._names_and_devices] == [device, device]
    found = [op._op for op in pipe._ops if hasattr(op._op, "schema_name")]  # the external source has none
    return [(op.schema_name, op.device) for op in found]


@pytest.mark.parametrize(
    ("rec", "decoder"),
    [
        (dp.crop_train(64), "decoders__ImageSlice"),
        (dp.crop_eval(64, "uint8"), "decoders__ImageSlice"),
        (dp.imagenet_train(64), "decoders__ImageSlice"),
        (dp.imagenet_eval(64), "decoders__Image"),
        (Recipe((dp.RandomFlip(), dp.RandomCrop(9))), "decoders__Image"),
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_the_cpu_decodes_only_the_region_of_a_crop_that_comes_first(rec: Recipe, decoder: str, native: bool) -> None:
    feed = pipeline.native_feed(["shard"], ["index"], "image", padded=True) if native else pipeline.memory_feed
    operators = _operators(rec, feed, "cpu")
    assert {device for _, device in operators} == {"cpu"}
    assert [name for name, _ in operators if name.startswith("decoders")] == [decoder]


def _gpu_ops(rec: Recipe, feed: pipeline.Feed, undersized: frozenset[int] = frozenset()) -> list[str]:
    """The ops that run on the GPU, decoder apart, in a graph whose every op is where it can be."""
    backend: Any = dali_backend
    registered = {
        "cpu": [*backend.RegisteredCPUOps(), "readers__TFRecord"],  # which Python puts over another
        "gpu": backend.RegisteredGPUOps(),
        "mixed": backend.RegisteredMixedOps(),
    }
    ops = _operators(rec, feed, "gpu", undersized)
    assert [op for op, device in ops if op not in registered[device]] == []
    assert [op for op, device in ops if device == "mixed"] == ["decoders__Image"]
    return [op for op, device in ops if device == "gpu"]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("feed", ["native", "padded", "bytes"])
@pytest.mark.parametrize("name", PRESETS)
def test_the_gpu_graph(name: str, feed: str, dtype: Any) -> None:
    preset, ops = PRESETS[name]
    rec = preset.with_dtype(dtype)
    feeds = {
        "native": pipeline.native_feed(["shard"], ["index"], "image", padded=False),
        "padded": pipeline.native_feed(["shard"], ["index"], "image", padded=True),
        "bytes": pipeline.memory_feed,
    }
    last = [] if dtype == "uint8" else ["CropMirrorNormalize"]
    assert _gpu_ops(rec, feeds[feed]) == [*ops, *last]


@pytest.mark.parametrize(
    ("rec", "ops"),
    [
        (dp.crop_train(64), ["Slice", *SMALL, "CropMirrorNormalize"]),
        (dp.crop_eval(64, "uint8"), ["Slice", *SMALL]),
        (dp.imagenet_eval(64), ["Resize", "Slice", *SMALL, "CropMirrorNormalize"]),
        (Recipe((dp.RandomFlip(), dp.RandomCrop(9)), "float16"), ["Flip", "Slice", *SMALL, "Cast"]),
    ],
)
def test_the_gpu_graph_of_small_images(rec: Recipe, ops: list[str]) -> None:
    crops = frozenset(place for place, op in enumerate(rec.ops) if isinstance(op, dp.RandomCrop | dp.CenterCrop))
    feed = pipeline.native_feed(["shard"], ["index"], "image", padded=True)
    assert _gpu_ops(rec, feed, crops) == ops


@pytest.mark.parametrize("rec", RECIPES.values(), ids=RECIPES)
def test_every_recipe_has_a_gpu_graph(rec: Recipe) -> None:
    _gpu_ops(rec, pipeline.memory_feed)


SUM = "_ArithmeticGenericOp"
ROUND = [SUM, SUM, "Cast"]  # half a grey level more, floor, uint8
# What each op is on the GPU, behind a crop.
GPU_OPS: dict[dp.Op, list[str]] = {
    dp.RandomCrop(9): ["Slice"],
    dp.CenterCrop(9): ["Slice"],
    dp.RandomResizedCrop(9): ["Slice", "Resize"],
    dp.Resize(9): ["Resize"],
    dp.ResizeShorter(9): ["Resize"],
    dp.RandomFlip(): ["Flip"],
    dp.RandomFlip(0.0, 0.5): ["Flip"],
    dp.RandomFlip(0.5, 0.5): ["Flip"],
    dp.Pad(((1, 2), (3, 4)), fill=9): ["Slice"],
    dp.RandomRotation(fill=9): ["WarpAffine"],
    dp.RandomErasing(fill=9): ["Erase"],
    dp.RandomBrightness(): [SUM, "Cast"],
    dp.RandomContrast(): ["Cast", "reductions__Mean", SUM, SUM, SUM, *ROUND],
    dp.RandomSaturation(): ["CoordTransform", *ROUND],
    dp.RandomHue(): ["CoordTransform", *ROUND],
    dp.Grayscale(): ["CoordTransform", *ROUND],
}
GPU_MIXES: dict[batch_ops.Mix, list[str]] = {
    dp.MixUp(): ["Cast", SUM, SUM, "PermuteBatch", SUM, SUM, *ROUND],
    dp.CutMix(): ["Erase", "PermuteBatch", "Erase", SUM, SUM, "Cast"],
}
DTYPES = ["uint8", "float16", "float32"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("op", GPU_OPS, ids=str)
def test_every_op_has_a_gpu_graph(op: dp.Op, normalized: bool, dtype: Any) -> None:
    rec = Recipe((dp.CenterCrop(64), op, *[dp.Normalize()] * normalized), dtype)
    last = [] if dtype == "uint8" else ["CropMirrorNormalize" if normalized else "Cast"]
    assert _gpu_ops(rec, pipeline.memory_feed) == ["Slice", *GPU_OPS[op], *last]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mix", [None, *GPU_MIXES], ids=str)
def test_labels_and_mixes_have_a_gpu_graph(mix: batch_ops.Mix | None, dtype: Any) -> None:
    """Labels are made on the CPU and copied."""
    rec = Recipe((dp.CenterCrop(64), dp.Normalize()), dtype, label=dp.OneHot(10, 0.1), mix=mix)
    last = [] if dtype == "uint8" else ["CropMirrorNormalize"]
    feeds = [
        pipeline.memory_feed,
        pipeline.native_feed(["shard"], ["index"], "image", padded=True),
        pipeline.native_feed(["shard"], ["index"], "image", padded=False),
    ]
    for feed in feeds:
        assert _gpu_ops(rec, feed) == ["Slice", *(GPU_MIXES[mix] if mix else []), *last]


def test_ops_follow_each_other_on_the_gpu() -> None:
    """Whatever an op hands on, each other must be able to take."""
    for first, mix in zip(GPU_OPS, [None, *GPU_MIXES] * len(GPU_OPS), strict=False):
        chain = [op for second in GPU_OPS for op in (first, second)]
        rec = Recipe((*chain, dp.Resize(9), dp.Normalize()), label=dp.OneHot(10), mix=mix)
        expected = [name for op in chain for name in GPU_OPS[op]]
        last = ["Resize", *(GPU_MIXES[mix] if mix else []), "CropMirrorNormalize"]
        assert _gpu_ops(rec, pipeline.memory_feed) == [*expected, *last]


def test_no_op_or_mix_is_forgotten_here() -> None:
    assert {type(op) for op in GPU_OPS} == set(pipeline._LOWERINGS)
    assert {type(mix) for mix in GPU_MIXES} == set(pipeline._MIXES)


def _concrete(base: type, *modules: ModuleType) -> set[type]:
    """The public classes of these modules that are a `base` and no other's base."""
    found = [cls for module in modules for cls in vars(module).values() if isinstance(cls, type)]
    kinds = {cls for cls in found if issubclass(cls, base) and not cls.__name__.startswith("_")}
    return kinds - {parent for cls in kinds for parent in cls.__mro__[1:]}


OPS, MIXES = _concrete(dp.Op, ops, color_ops), _concrete(batch_ops.Mix, batch_ops)


def test_every_op_and_mix_is_public() -> None:
    assert {dp.RandomCrop, dp.Normalize, dp.Grayscale, dp.RandomErasing} < OPS
    assert {dp.MixUp, dp.CutMix} == MIXES
    assert {cls.__name__ for cls in OPS | MIXES} < set(dp.__all__)


@pytest.mark.parametrize("engine", [pipeline, tfdata_engine])
def test_every_op_and_mix_has_its_lowering(engine: Any) -> None:
    assert set(engine._LOWERINGS) == OPS - {dp.Normalize}
    assert set(engine._MIXES) == MIXES


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_an_op_without_a_lowering_raises(device: Any) -> None:
    class Invert(dp.Op):
        pass

    rec = Recipe((dp.CenterCrop(8), Invert()))
    with Pipeline(batch_size=1, num_threads=1, device_id=None), pytest.raises(NotImplementedError, match="Invert"):
        pipeline.graph(pipeline.memory_feed, rec, device)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_the_gpu_gives_what_the_cpu_gives(view: Records, name: str, dtype: Any) -> None:
    """To a few grey levels: nvJPEG's inverse transform is another."""
    rec = PRESETS[name][0].with_dtype(dtype)
    images, labels, _ = _epoch(view, rec, "gpu")
    expected, expected_labels, _ = _epoch(view, rec)
    assert labels == expected_labels
    unit = 1.0 if dtype == "uint8" else 1 / 57.0
    difference = np.abs(np.stack(images).astype(float) - np.stack(expected).astype(float)) / unit
    assert difference.max() < 6
    assert difference.mean() < 1


@pytest.mark.gpu
@pytest.mark.parametrize("rec", RECIPES.values(), ids=RECIPES)
def test_the_gpu_shows_the_windows_of_the_tickets(view: Records, rec: Recipe) -> None:
    images, labels, tickets = _epoch(view, rec, "gpu")
    for image, label, ticket in zip(images, labels, tickets.tolist(), strict=True):
        y, x = _followed(rec, ticket[plan.FIRST_PARAMETER :], SIZES[label])
        np.testing.assert_allclose(image[..., 0], np.broadcast_to(x[None, :], image.shape[:2]), atol=5)
        np.testing.assert_allclose(image[..., 1], np.broadcast_to(y[:, None], image.shape[:2]), atol=5)


@pytest.mark.gpu
@pytest.mark.parametrize("mix", [None, *GPU_MIXES], ids=str)
@pytest.mark.parametrize("op", GPU_OPS, ids=str)
def test_every_op_and_mix_on_the_gpu_gives_what_it_gives_on_the_cpu(
    view: Records, op: dp.Op, mix: batch_ops.Mix | None
) -> None:
    """To a few grey levels more, which contrast and colours make of nvJPEG's."""
    rec = Recipe((dp.CenterCrop(40), op), "uint8", label=dp.OneHot(10, 0.1), mix=mix)
    (images, labels, _), (expected, expected_labels, _) = (_epoch(view, rec, device) for device in ("gpu", "cpu"))
    np.testing.assert_allclose(labels, expected_labels, rtol=1e-6)
    difference = np.abs(np.stack(images).astype(float) - np.stack(expected))
    assert difference.max() < 12
    assert difference.mean() < 1.5
