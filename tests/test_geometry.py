"""Crop windows and sizes: worked examples, laws, and Keras itself."""

import math
from itertools import product

import keras
import numpy as np
import pytest
import tensorflow as tf

from dali_pipe import geometry
from dali_pipe.geometry import Floats, Ints
from tests import support

LARGEST_U = 1 - 2**-24  # a plan's draws are multiples of 2⁻²⁴ below 1


def _assert_uniform(counts: Ints) -> None:
    """Pearson's chi-square within four deviations of its mean."""
    expected, freedom = counts.sum() / len(counts), len(counts) - 1
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


def _some_sizes(count: int, largest: int = 700) -> Ints:
    """Sizes of every kind: most small, some a single pixel high or wide."""
    rng = np.random.default_rng(11)
    sizes = np.ceil(largest ** rng.random((count, 2))).astype(np.int64)
    sizes[:: count // 10] = 1
    return sizes


def _assert_inside(windows: Ints, sizes: Ints) -> None:
    y, x, height, width = windows.T
    assert (height >= 1).all() and (width >= 1).all()
    assert (y >= 0).all() and (x >= 0).all()
    assert (y + height <= sizes[:, 0]).all() and (x + width <= sizes[:, 1]).all()


@pytest.mark.parametrize(
    ("space", "u", "place"),
    [(0, 0.0, 0), (0, LARGEST_U, 0), (4, 0.0, 0), (4, 0.2, 1), (4, 0.19, 0), (4, 0.5, 2), (4, LARGEST_U, 4)],
)
def test_position_reaches_both_ends(space: int, u: float, place: int) -> None:
    assert geometry.position(space, u) == place


def test_position_stays_inside_for_the_largest_side_a_jpeg_can_have() -> None:
    assert geometry.position(65535, LARGEST_U) == 65535


@pytest.mark.parametrize(
    ("size", "crop", "window"),
    [
        ((10, 10), (4, 4), (3, 3, 4, 4)),
        ((11, 10), (4, 4), (3, 3, 4, 4)),  # seven spare rows: three above, four below
        ((10, 13), (4, 6), (3, 3, 4, 6)),  # seven spare columns: three on the left
        ((5, 5), (4, 4), (0, 0, 4, 4)),
        ((4, 6), (4, 6), (0, 0, 4, 6)),
        ((3, 3), (4, 4), (0, 0, 3, 3)),  # smaller in both sides, of the crop's aspect: all of it
        ((24, 32), (64, 64), (0, 4, 24, 24)),
        ((30, 900), (64, 64), (0, 435, 30, 30)),  # smaller in one side only
        ((900, 30), (64, 64), (435, 0, 30, 30)),
        ((10, 10), (20, 40), (2, 0, 5, 10)),  # five spare rows: two above
        ((7, 10), (20, 40), (1, 0, 5, 10)),
        ((7, 9), (20, 40), (1, 0, 4, 9)),  # 4.5 rows are cut to four
        ((1, 1), (2, 300), (0, 0, 1, 1)),  # never an empty window
        ((300, 1), (2, 300), (149, 0, 1, 1)),
    ],
)
def test_center_window(size: tuple[int, int], crop: tuple[int, int], window: tuple[int, ...]) -> None:
    assert geometry.center_window(*size, *crop).tolist() == list(window)


SIDES = (9, 16, 17, 40)


@pytest.mark.parametrize("crop", [(16, 16), (9, 17)])
def test_center_window_is_what_keras_cuts(crop: tuple[int, int]) -> None:
    layer = keras.layers.CenterCrop(*crop)
    for height, width in product(SIDES, SIDES):
        image = support.coordinates(height, width).astype(np.float32)
        y, x, h, w = geometry.center_window(height, width, *crop).tolist()
        expected = tf.image.resize(image[y : y + h, x : x + w], crop)
        np.testing.assert_array_equal(layer(image), expected, f"{height}x{width}")


def test_small_images_give_the_window_of_keras_smart_resize() -> None:
    """The rule of `keras.layers.RandomCrop` and `CenterCrop` (`smart_resize`), in Keras's own floats."""
    sizes = _some_sizes(500)
    for (height, width), crop in zip(
        sizes.tolist(), ((a, b) for a in range(2, 52) for b in range(60, 70)), strict=True
    ):
        h = max(min(height, int(float(width * crop[0]) / crop[1])), 1)
        w = max(min(width, int(float(height * crop[1]) / crop[0])), 1)
        window = (int(float(height - h) / 2), int(float(width - w) / 2), h, w)
        assert geometry.fitting_window(height, width, *crop).tolist() == list(window), (height, width, crop)


@pytest.mark.parametrize(
    ("u", "window"),
    [
        ((0.0, 0.0), (0, 0, 4, 4)),
        ((LARGEST_U, LARGEST_U), (6, 8, 4, 4)),
        ((0.5, 0.0), (3, 0, 4, 4)),  # floor(0.5 · 7)
        ((0.0, 0.5), (0, 4, 4, 4)),  # floor(0.5 · 9)
    ],
)
def test_random_window(u: tuple[float, float], window: tuple[int, ...]) -> None:
    assert geometry.random_window(10, 12, 4, 4, u).tolist() == list(window)


def test_random_window_of_a_small_image_is_the_centred_one() -> None:
    for u in ((0.0, 0.0), (LARGEST_U, LARGEST_U)):
        assert geometry.random_window(24, 32, 64, 64, u).tolist() == [0, 4, 24, 24]


def test_random_window_is_uniform() -> None:
    u = np.random.default_rng(0).random((70_000, 2))
    windows = geometry.random_window(10, 12, 4, 8, u)
    places = np.bincount(windows[:, 0] * 5 + windows[:, 1])
    assert len(places) == 7 * 5
    _assert_uniform(places)


@pytest.mark.parametrize("crop", [(1, 1), (32, 32), (224, 224), (7, 300), (300, 7)])
def test_every_window_lies_inside_its_image(crop: tuple[int, int]) -> None:
    sizes = _some_sizes(4000)
    u = np.random.default_rng(1).random((len(sizes), 2))
    u[::7], u[1::7] = 0.0, LARGEST_U
    _assert_inside(geometry.center_window(sizes[:, 0], sizes[:, 1], *crop), sizes)
    _assert_inside(geometry.random_window(sizes[:, 0], sizes[:, 1], *crop, u), sizes)
    _assert_inside(geometry.fitting_window(sizes[:, 0], sizes[:, 1], *crop), sizes)


def test_windows_have_the_crops_size_where_the_image_holds_it() -> None:
    sizes = _some_sizes(4000)
    windows = geometry.random_window(sizes[:, 0], sizes[:, 1], 20, 30, np.random.default_rng(2).random((len(sizes), 2)))
    holds = (sizes[:, 0] >= 20) & (sizes[:, 1] >= 30)
    assert 500 < holds.sum() < 3500
    np.testing.assert_array_equal((windows[:, 2:] == (20, 30)).all(axis=1) | ~holds, True)


SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def _draws(count: int, seed: int = 3) -> Floats:
    return np.random.default_rng(seed).random((count, geometry.RESIZED_CROP_WORDS))


def _torchvision(height: int, width: int, u: list[float]) -> list[int]:
    """`torchvision.transforms.RandomResizedCrop.get_params`, its random numbers given."""
    for area_draw, aspect_draw in zip(u[:10], u[10:20], strict=True):
        area = height * width * (SCALE[0] + area_draw * (SCALE[1] - SCALE[0]))
        low, high = math.log(RATIO[0]), math.log(RATIO[1])
        aspect = math.exp(low + aspect_draw * (high - low))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return [math.floor(u[20] * (height - h + 1)), math.floor(u[21] * (width - w + 1)), h, w]
    in_ratio = width / height
    if in_ratio < RATIO[0]:
        w, h = width, round(width / RATIO[0])
    elif in_ratio > RATIO[1]:
        w, h = round(height * RATIO[1]), height
    else:
        w, h = width, height
    return [(height - h) // 2, (width - w) // 2, h, w]


def test_resized_crop_window_follows_torchvision() -> None:
    sizes, u = _some_sizes(2000), _draws(2000)
    windows = geometry.resized_crop_window(sizes[:, 0], sizes[:, 1], SCALE, RATIO, u)
    expected = [_torchvision(h, w, row) for (h, w), row in zip(sizes.tolist(), u.tolist(), strict=True)]
    different = (windows != expected).any(axis=1)
    # Python rounds halves to even: a square root on .5, or a fallback such as 10 / (3/4), may differ by a pixel
    assert np.abs(windows - expected).max() <= 1
    assert different.mean() < 0.02


def test_resized_crop_area_is_uniform_in_its_scale() -> None:
    """On a large image, with areas small enough that every first try fits."""
    windows = geometry.resized_crop_window(4000, 4000, (0.1, 0.5), RATIO, _draws(40_000))
    fraction = windows[:, 2] * windows[:, 3] / 4000**2
    assert fraction.min() > 0.0995 and fraction.max() < 0.5005
    _assert_uniform(np.histogram(fraction, 20, (0.1, 0.5))[0])


def test_resized_crop_aspect_is_uniform_in_its_logarithm() -> None:
    windows = geometry.resized_crop_window(4000, 4000, (0.1, 0.5), (1 / 2, 2.0), _draws(40_000))
    log_aspect = np.log2(windows[:, 3] / windows[:, 2])
    assert np.abs(log_aspect).max() < 1.001
    _assert_uniform(np.histogram(log_aspect, 20, (-1, 1))[0])


def test_resized_crop_position_is_uniform() -> None:
    windows = geometry.resized_crop_window(4, 6, (0.25, 0.25), (1.5, 1.5), _draws(40_000))
    assert np.unique(windows[:, 2:], axis=0).tolist() == [[2, 3]]
    _assert_uniform(np.bincount(windows[:, 0] * 4 + windows[:, 1]))


@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((10, 1000), (0, 493, 10, 13)),  # 4/3 of ten rows, 987 spare columns
        ((1000, 9), (494, 0, 12, 9)),  # 4/3 of nine columns, 988 spare rows
        ((1, 500), (0, 249, 1, 1)),
        ((500, 1), (249, 0, 1, 1)),
    ],
)
def test_extreme_images_give_the_largest_centred_window_within_ratio(
    size: tuple[int, int], window: tuple[int, ...]
) -> None:
    u = np.full(geometry.RESIZED_CROP_WORDS, 0.9)  # every try is taller than such an image is, or wider
    assert geometry.resized_crop_window(*size, SCALE, RATIO, u).tolist() == list(window)


def test_every_resized_crop_window_lies_inside_its_image() -> None:
    sizes = _some_sizes(4000)
    for ratio in (RATIO, (0.01, 0.02), (50.0, 100.0), (1.0, 1.0)):
        u = _draws(len(sizes))
        u[::7], u[1::7] = 0.0, LARGEST_U
        _assert_inside(geometry.resized_crop_window(sizes[:, 0], sizes[:, 1], SCALE, ratio, u), sizes)


@pytest.mark.parametrize(
    ("size", "shorter", "result"),
    [
        ((480, 640), 256, (256, 341)),  # 341.3
        ((640, 480), 256, (341, 256)),
        ((100, 100), 256, (256, 256)),
        ((500, 375), 256, (341, 256)),
        ((3, 1000), 2, (2, 666)),
        ((1, 7), 5, (5, 35)),
    ],
)
def test_shorter_side(size: tuple[int, int], shorter: int, result: tuple[int, int]) -> None:
    assert geometry.shorter_side(*size, shorter).tolist() == list(result)


def test_shorter_side_never_falls_below_the_size() -> None:
    sizes = _some_sizes(4000)
    np.testing.assert_array_equal(geometry.shorter_side(sizes[:, 0], sizes[:, 1], 37).min(axis=1), 37)


def test_columns_of_images_give_what_single_images_give() -> None:
    sizes, u = _some_sizes(50), _draws(50)
    for place, (height, width) in enumerate(sizes.tolist()):
        draws = u[place]
        one = geometry.resized_crop_window(height, width, SCALE, RATIO, draws)
        assert (one == geometry.resized_crop_window(sizes[:, 0], sizes[:, 1], SCALE, RATIO, u)[place]).all()
        one = geometry.random_window(height, width, 20, 30, draws[:2])
        assert (one == geometry.random_window(sizes[:, 0], sizes[:, 1], 20, 30, u[:, :2])[place]).all()
