"""Keras preprocessing layers against the recipes made of them: the same images, on both engines."""

import io
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers as kl
from numpy.typing import NDArray
from PIL import Image

import dali_pipe as dp
import tf_bridge as tb
from dali_pipe.ops import Op
from tests import support

Images = NDArray[np.float32]
SIZES = [(60, 80), (33, 47), (41, 20), (25, 21), (24, 20), (20, 60), (50, 31), (31, 64)]
MEAN, VARIANCE = [0.485, 0.456, 0.406], [0.229**2, 0.224**2, 0.225**2]
COPIES = 400


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Lossless, so that every engine decodes what the layers are given."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def pixels() -> list[NDArray[np.uint8]]:
    """Photographs of odd and even sides of 20 and more, decoded."""
    encoded = [support.photograph(k, *size) for k, size in enumerate(SIZES)]
    return [np.asarray(Image.open(io.BytesIO(image))) for image in encoded]


@pytest.fixture(scope="module")
def photographs(pixels: list[NDArray[np.uint8]], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return support.write_shards(tmp_path_factory.mktemp("png"), [_png(p) for p in pixels])


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One small image whose pixels are their coordinates, many times over."""
    return support.write_shards(tmp_path_factory.mktemp("copies"), [_png(support.coordinates(12, 11))] * COPIES)


def _run(recipe: dp.Recipe, files: list[Path], engine: Any, **options: Any) -> NDArray[Any]:
    """All images in the files' order."""
    fixed: dict[str, Any] = {"shuffle": False, "drop_remainder": False, "seed": 0, "device": "cpu", **options}
    dataset = tb.from_tfrecords(files, recipe=recipe, batch_size=100, engine=engine, **fixed)
    return np.concatenate([images for images, _ in dataset])


def _keras(layers: list[Any], pixels: list[NDArray[np.uint8]]) -> Images:
    """What the layers make of each image on its own."""
    made = []
    for image in pixels:
        x = image[None].astype("float32")
        for layer in layers:
            x = layer(x)
        made.append(np.asarray(x))
    return np.concatenate(made)


def _normalization(**options: Any) -> Any:
    return kl.Normalization(mean=MEAN, variance=VARIANCE, **options)


CROP = kl.CenterCrop(20, 20)  # every image holds it, so what follows meets whole grey levels
ROTATION = {"factor": (0.1, 0.1), "fill_mode": "constant"}
# Layers, and the bound: 0.5 is the rounding to whole grey levels, once for each layer that computes.
CASES = {
    "center crop with odd margins": ([kl.CenterCrop(19, 18)], 0),
    "center crop of smaller images": ([kl.CenterCrop(40, 36)], 0.51),
    "padding": ([kl.ZeroPadding2D(((1, 2), (3, 0))), kl.CenterCrop(22, 21)], 0),
    "shrinking": ([kl.Resizing(17, 18)], 0.51),
    "enlarging": ([kl.Resizing(90, 71)], 0.51),
    "random crop, one side equal": ([kl.Resizing(30, 24), kl.RandomCrop(20, 24)], 0.51),
    "brighter": ([CROP, kl.RandomBrightness((0.3, 0.3))], 0.51),
    "darker": ([CROP, kl.RandomBrightness((-0.29, -0.29))], 0.51),
    "contrast": ([CROP, kl.RandomContrast((-0.3, 0.3))], 0.51),  # from 1 − (−0.3) to 1 + 0.3
    "rotation": ([CROP, kl.RandomRotation(**ROTATION, fill_value=17.0)], 0.51),
    "rotation of oblongs": ([kl.CenterCrop(15, 20), kl.RandomRotation((-0.03, -0.03), fill_mode="constant")], 0.51),
    "more colour": ([CROP, kl.RandomColorDegeneration((-0.4, -0.4))], 0.54),
    "grey": ([CROP, kl.RandomGrayscale(1.0)], 0.54),
    "three that round": ([kl.Resizing(20, 20), kl.RandomRotation(**ROTATION), kl.RandomBrightness((0.1, 0.1))], 1.51),
}


@pytest.mark.parametrize("case", CASES)
def test_parity(case: str, engine: str, photographs: list[Path], pixels: list[NDArray[np.uint8]]) -> None:
    layers, bound = CASES[case]
    found = _run(tb.from_keras(layers), photographs, engine)
    assert np.abs(found - _keras(layers, pixels)).max() <= bound


@pytest.mark.parametrize(("engine_name", "bound"), [("tfdata", 0.51), ("dali", 8)])
def test_antialias(engine_name: str, bound: float, photographs: list[Path], pixels: list[NDArray[np.uint8]]) -> None:
    layers = [kl.Resizing(13, 12, antialias=True)]
    difference = np.abs(_run(tb.from_keras(layers), photographs, engine_name) - _keras(layers, pixels))
    assert difference.max() <= bound
    assert difference.mean() <= 0.5


def _adapted(**options: Any) -> Any:
    layer = kl.Normalization(**options)
    layer.adapt(np.random.default_rng(0).uniform(0, [[[[0.3, 0.7, 1]]]], (4, 20, 20, 3)).astype("float32"))
    return layer


AFFINE = {
    "rescaling": [kl.Rescaling(1 / 127.5, offset=-1)],
    "per channel": [kl.Rescaling([0.1, 0.2, 0.3], offset=np.array([[[1, 2, 3]]]))],
    "normalization": [_normalization()],
    "of one number": [kl.Normalization(axis=None, mean=100.0, variance=2500.0)],
    "no variance": [kl.Normalization(mean=3.0, variance=0.0), kl.Rescaling(1e-7)],
    "inverted": [_normalization(invert=True)],
    "adapted": [kl.Rescaling(1 / 255), _adapted()],
    "adapted to one number": [kl.Rescaling(1 / 255), _adapted(axis=None)],
    "four in a row": [kl.Rescaling(1 / 255), _normalization(), kl.Rescaling(2, 1), _adapted(axis=3, invert=True)],
    "in float16": [kl.Rescaling(1 / 256, dtype="mixed_float16")],  # numbers that it holds exactly
}


@pytest.mark.parametrize("case", AFFINE)
def test_affine_layers_are_one_normalize(case: str, pixels: list[NDArray[np.uint8]]) -> None:
    recipe = tb.from_keras([CROP, *AFFINE[case]], dtype="uint8")
    assert [type(op) for op in recipe.ops] == [dp.CenterCrop, dp.Normalize]
    wanted = _keras(AFFINE[case], pixels[:1])
    found = tb.Preprocess(recipe)(pixels[0][None])
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("layers", "bound"),
    [
        ([kl.Rescaling(1 / 255), kl.Resizing(30, 30), kl.CenterCrop(20, 20), _normalization()], 0.51 / 255 / 0.224),
        ([kl.Rescaling(1 / 255), CROP, kl.RandomBrightness((0.2, 0.2), value_range=(0, 1))], 0.51 / 255),
        ([CROP, kl.Rescaling(1 / 127.5, -1), kl.RandomContrast((-0.3, 0.3), value_range=(-1, 1))], 0.51 / 127.5),
        ([CROP, kl.Rescaling(1 / 127.5, -1), kl.RandomRotation(**ROTATION, fill_value=-1.0)], 0.51 / 127.5),
        ([_normalization(), kl.CenterCrop(15, 12)], 1e-3),
        ([kl.Rescaling(2, offset=-510), kl.ZeroPadding2D(3), kl.CenterCrop(26, 26)], 1e-4),  # 0 is white
        ([CROP, kl.Rescaling(1 / 255), kl.RandomGrayscale(1.0)], 0.54 / 255),
    ],
    ids=lambda value: ", ".join(type(layer).__name__ for layer in value) if isinstance(value, list) else "",
)
def test_layers_after_affine_ones(
    layers: list[Any], bound: float, engine: str, photographs: list[Path], pixels: list[NDArray[np.uint8]]
) -> None:
    recipe = tb.from_keras(layers)
    assert isinstance(recipe.ops[-1], dp.Normalize)
    assert np.abs(_run(recipe, photographs, engine) - _keras(layers, pixels)).max() <= bound


def test_the_classic_is_crop_train(tmp_path: Path, engine: str) -> None:
    files = support.write_shards(tmp_path, [support.photograph(k, 230 + k, 240 - k) for k in range(4)], shards=1)
    layers = keras.Sequential([kl.RandomCrop(224, 224), kl.Rescaling(1 / 255), _normalization()])
    recipe = tb.from_keras(layers)
    found = _run(recipe, files, engine)
    np.testing.assert_allclose(found, _run(dp.crop_train(224), files, engine), rtol=1e-6, atol=1e-6)
    crops = _run(tb.from_keras(kl.RandomCrop(224, 224), dtype="uint8"), files, engine)
    affine = keras.Sequential(layers.layers[1:])
    np.testing.assert_allclose(found, affine(crops.astype("float32")), rtol=1e-6, atol=1e-6)
    bytes_only = tb.from_keras(layers, dtype="uint8")
    np.testing.assert_allclose(tb.Preprocess(bytes_only)(crops), found, rtol=1e-6, atol=1e-6)


def test_a_saved_preprocess_is_the_engines_normalisation(photographs: list[Path], tmp_path: Path, engine: str) -> None:
    """Within an ulp of float32, and in a graph, as `predict` and a server run it."""
    recipe = dp.crop_train(20, "uint8")
    keras.Sequential([keras.Input(recipe.output_shape), tb.Preprocess(recipe)]).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found = loaded.predict(_run(recipe, photographs, engine), verbose=0)
    assert found.dtype == np.float32
    np.testing.assert_array_max_ulp(found, _run(recipe.with_dtype("float32"), photographs, engine), maxulp=1)


@pytest.mark.parametrize("who", ["dali", "tfdata", "keras"])
def test_random_crop_is_a_uniform_window(who: str, copies: list[Path]) -> None:
    image, layer = support.coordinates(12, 11), kl.RandomCrop(8, 8, seed=0)
    if who == "keras":
        crops = np.stack([np.asarray(layer(image.astype("float32"))) for _ in range(COPIES)])
    else:
        crops = _run(tb.from_keras(layer), copies, who)
    x, y = crops[:, 0, 0, 0].astype(int), crops[:, 0, 0, 1].astype(int)
    windows = np.stack([image[j : j + 8, i : i + 8] for i, j in zip(x, y, strict=True)])
    np.testing.assert_array_equal(crops, windows)
    counts = np.bincount(5 * x + y, minlength=20)  # 4 columns, 5 rows
    assert len(counts) == 20
    assert ((counts - COPIES / 20) ** 2 / (COPIES / 20)).sum() < 45  # chi², 19 degrees of freedom: p = 0.0007


BOTH = "horizontal_and_vertical"  # Keras's default, of one draw


@pytest.mark.parametrize("modes", [("horizontal",), ("vertical",), ("horizontal", "vertical"), (BOTH,)])
def test_flips_have_the_layers_law(modes: tuple[str, ...], copies: list[Path], engine: str) -> None:
    image = support.coordinates(12, 11)
    layers = [kl.CenterCrop(12, 11), *[kl.RandomFlip(mode, seed=k) for k, mode in enumerate(modes)]]
    steps = [(1, -1) if mode in modes else (1,) for mode in ("vertical", "horizontal")]
    possible = np.stack([image[::v, ::h] for v in steps[0] for h in steps[1]])
    if modes == (BOTH,):
        possible = np.stack([image, image[::-1, ::-1]])
    batch = np.stack([image] * COPIES).astype("float32")
    for flipped in (_run(tb.from_keras(layers), copies, engine), np.asarray(keras.Sequential(layers)(batch))):
        matches = (flipped[:, None] == possible).all((2, 3, 4))
        assert (matches.sum(1) == 1).all()
        share = 1 / len(possible)
        assert matches.mean(0) == pytest.approx(share, abs=5 * (share * (1 - share) / COPIES) ** 0.5)


@pytest.mark.parametrize(
    ("layer", "parameter", "lower", "upper"),
    [
        (kl.RandomBrightness(0.2), lambda t: t["rgb_delta"] / 255, -0.2, 0.2),
        (kl.RandomBrightness((0.3, -0.1)), lambda t: t["rgb_delta"] / 255, -0.1, 0.3),
        (kl.RandomContrast(0.2), lambda t: t["contrast_factor"], 1.0, 1.2),
        (kl.RandomContrast((0.1, 0.4)), lambda t: t["contrast_factor"], 0.9, 1.4),
        (kl.RandomColorDegeneration((0.1, 0.4)), lambda t: 1 - t["factor"], 0.6, 0.9),
        (kl.RandomRotation(0.05, fill_mode="constant"), lambda t: t["angle"], -18, 18),
        (kl.RandomRotation((-0.1, 0.2), fill_mode="constant"), lambda t: t["angle"], -36, 72),
    ],
)
def test_ranges_are_those_the_layers_draw_from(layer: Any, parameter: Any, lower: float, upper: float) -> None:
    op: Any = tb.from_keras([CROP, layer]).ops[-1]
    assert (op.lower, op.upper) == pytest.approx((lower, upper))
    drawn = np.asarray(parameter(layer.get_random_transformation(np.zeros((2000, 1, 1, 3), np.float32))))
    assert drawn.size == 2000
    assert (drawn.min(), drawn.max()) == pytest.approx((lower, upper), abs=(upper - lower) / 100)
    assert drawn.mean() == pytest.approx((lower + upper) / 2, abs=(upper - lower) / 20)


class TestWhatKerasDoes:
    """Where a recipe differs, or an error says it would: to be looked at again when Keras changes."""

    def test_both_modes_of_flip_share_one_draw(self) -> None:
        image = support.coordinates(12, 11)
        flipped = np.asarray(kl.RandomFlip(seed=0)(np.stack([image] * 200).astype("float32")))
        turned = (flipped == image[::-1, ::-1]).all((1, 2, 3))
        assert 50 < turned.sum() < 150
        assert (flipped[~turned] == image).all()

    def test_random_crop_stretches_a_part_of_smaller_images(self) -> None:
        crop = np.asarray(kl.RandomCrop(60, 60)(support.coordinates(30, 90).astype("float32")))
        assert (crop[..., 0].min(), crop[..., 0].max()) == (30, 89)  # 60 columns become 60
        assert (crop[..., 1].min(), crop[..., 1].max()) == (0, 29)  # 30 rows become 60

    def test_random_crop_is_central_where_a_side_is_equal(self) -> None:
        crop = np.asarray(kl.RandomCrop(30, 60)(support.coordinates(30, 91).astype("float32")))
        np.testing.assert_array_equal(crop, support.coordinates(30, 91)[:, 15:75])


def _ops(layers: Any) -> list[Op]:
    return list(tb.from_keras(layers).ops)


def test_layers_come_in_many_containers() -> None:
    crop, flip, scale = kl.RandomCrop(20, 20), kl.RandomFlip("horizontal"), kl.Rescaling(1 / 255)
    wanted = [dp.RandomCrop(20), dp.RandomFlip(0.5, 0.0), dp.Normalize((0, 0, 0), (255, 255, 255))]
    inputs = keras.Input((32, 32, 3))
    for layers in (
        [crop, flip, scale],
        (crop, keras.Sequential([flip]), scale),
        keras.Sequential([inputs, crop, flip, scale]),
        [kl.InputLayer((32, 32, 3)), crop, flip, scale],
        kl.Pipeline([crop, flip, scale]),
    ):
        assert _ops(layers) == wanted
    assert _ops(crop) == [dp.RandomCrop(20)]
    assert not kl.Normalization(mean=MEAN, variance=VARIANCE).built


def test_options_go_to_the_recipe() -> None:
    label, mix = dp.OneHot(10), dp.MixUp()
    recipe = tb.from_keras(CROP, dtype="uint8", dct="fast", exif=True, label=label, mix=mix)
    assert recipe == dp.Recipe((dp.CenterCrop(20),), "uint8", dct="fast", exif=True, label=label, mix=mix)


class Lighter(kl.Rescaling):
    """A subclass may compute anything."""


def _built() -> Any:
    layer = kl.Normalization()
    layer.build((None, 20, 20, 3))
    return layer


SCALED = kl.Rescaling(1 / 255)
REFUSED = {
    "nearest": (kl.Resizing(8, 8, "nearest"), "`interpolation` must be 'bilinear'. Received: interpolation='nearest'"),
    "crop to aspect": (kl.Resizing(8, 8, crop_to_aspect_ratio=True), "`crop_to_aspect_ratio` must be False: in a Rec"),
    "pad to aspect": (kl.Resizing(8, 8, pad_to_aspect_ratio=True), "`pad_to_aspect_ratio` must be False. Received: pa"),
    "size": (kl.Resizing(8.5, 8), r"`size` must be a positive int or \(height, width\). Received: size=\(8.5, 8\)"),
    "channels": (kl.CenterCrop(8, 8, data_format="channels_first"), '`data_format` must be "channels_last". Received'),
    "dtype": (
        kl.RandomBrightness(0.1, dtype="uint8"),
        "`dtype` must be a float, as whole numbers wrap round. Received",
    ),
    "crop of smaller": ([kl.Resizing(20, 30), kl.RandomCrop(24, 24)], "images before it must not be smaller, as Keras"),
    "no flip": (kl.RandomFlip("horizontally"), "`mode` must be one of 'horizontal', .*. Received: mode='horizontally'"),
    "reflect": (kl.RandomRotation(0.1), "`fill_mode` must be 'constant', as .*. Received: fill_mode='reflect'"),
    "rotate nearest": (
        kl.RandomRotation(0.1, fill_mode="constant", interpolation="nearest"),
        "`interpolation` must be 'bilinear'. Received: interpolation='nearest'",
    ),
    "fill between": ([SCALED, kl.RandomRotation(**ROTATION, fill_value=0.5)], "one whole grey level, .* is .127.5"),
    "fill outside": (kl.RandomRotation(**ROTATION, fill_value=-1.0), "one whole grey level, .* Received: -1.0"),
    "fill by channel": ([_normalization(), kl.ZeroPadding2D()], "what it fills with must be one whole grey level"),
    "range of bytes": (
        [SCALED, kl.RandomBrightness(0.1)],
        r"`value_range` must be what 0 and 255 are where it stands, ",
    ),
    "range of units": (kl.RandomContrast(0.1, value_range=(0, 1)), r"Received: value_range=\(0, 1\)"),
    "range by channel": ([_normalization(), kl.RandomColorDegeneration(0.1)], r"`value_range` must be what 0 and 255"),
    "bounds": (kl.RandomBrightness((-3, 3)), "`lower` and `upper` must be -1.0 <= lower <= upper <= 1.0. Received"),
    "sometimes grey": (
        kl.RandomGrayscale(0.5),
        "`factor` must be 1.0, which makes all images grey. Received: factor=0.5",
    ),
    "grey by channel": ([_normalization(), kl.RandomGrayscale(1.0)], "must scale all channels alike: put it before"),
    "negative": (
        kl.Rescaling(-1 / 255),
        r"its scale must be positive, as the std of `Normalize` is, .* scale=\[-0.0039",
    ),
    "zero": ([SCALED, kl.Rescaling([1, 0, 1])], r"its scale must be positive, .* scale=\[1.0, 0.0, 1.0\]"),
    "two channels": (
        kl.Rescaling([1, 2]),
        r"its scale must be a number, or one for each of 3 channels. Received: shape \(2,\)",
    ),
    "by row": (
        kl.Rescaling(1, offset=np.ones((3, 1, 1))),
        r"its offset must be a number, .* Received: shape \(3, 1, 1\)",
    ),
    "axis": (kl.Normalization(axis=1, mean=MEAN, variance=VARIANCE), r"`axis` must be -1 or None. Received: axis=\(1,"),
    "not adapted": (kl.Normalization(), "it must have statistics: call its `adapt`, or give it `mean` and `variance`"),
    "built only": (_built(), "it must have statistics: call its `adapt`, or give it `mean` and `variance`"),
    "MixUp": (kl.MixUp(), "`dali_pipe.MixUp` once a batch.* use it as a layer"),
    "CutMix": (kl.CutMix(), "`dali_pipe.CutMix` once a batch.* use it as a layer"),
    "erasing": (kl.RandomErasing(), "it draws height and width by another law than `dali_pipe.RandomErasing`"),
    "hue": (kl.RandomHue(0.1), "it turns HSV's hue, `dali_pipe.RandomHue` turns YIQ's: other functions"),
    "saturation": (kl.RandomSaturation(0.1), "it scales HSV's saturation, .*RandomColorDegeneration: other functions"),
    "zoom": (kl.RandomZoom(0.1), "it must be one of CenterCrop, Normalization, RandomBrightness, .*, and no subclass"),
    "dense": (kl.Dense(3), "it must be one of CenterCrop, Normalization"),
    "subclass": (Lighter(1 / 255), "it must be one of CenterCrop, Normalization, .*, and no subclass"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_equal_is_an_error_that_names_the_layer(case: str) -> None:
    layers, message = REFUSED[case]
    named = layers[-1] if isinstance(layers, list) else layers
    start = f"^{type(named).__name__} '{named.name}' cannot go into a recipe: .*"
    with pytest.raises(ValueError, match=f"{start}{message}.*If it must stay as it is, keep it in the model"):
        tb.from_keras([layers, CROP])


def test_global_channels_first_is_an_error() -> None:
    keras.config.set_image_data_format("channels_first")
    try:
        with pytest.raises(ValueError, match=r'Rescaling .*`data_format` must be "channels_last"'):
            tb.from_keras([CROP, kl.Rescaling(1 / 255)])
    finally:
        keras.config.set_image_data_format("channels_last")


@pytest.mark.parametrize("layers", ["CenterCrop", [CROP, "flip"], None, [lambda x: x]])
def test_other_things_are_type_errors(layers: Any) -> None:
    with pytest.raises(TypeError, match=r"`layers` must be Keras layers, or a keras.Sequential of them. Received: "):
        tb.from_keras(layers)


@pytest.mark.parametrize("layers", [[], keras.Sequential(), [kl.InputLayer((8, 8, 3))]])
def test_no_layers(layers: Any) -> None:
    with pytest.raises(ValueError, match=r"`layers` must hold at least one layer\. Received: layers="):
        tb.from_keras(layers)


def test_sizes_that_vary_are_the_recipe_s_error() -> None:
    with pytest.raises(ValueError, match="A recipe must give every image the same size"):
        tb.from_keras([kl.Rescaling(1 / 255), kl.RandomFlip("vertical")])
