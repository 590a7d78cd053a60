"""Windows, sizes and turns: worked examples, laws, and Keras itself."""

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


def _torchvision_erasing(height: int, width: int, scale: list[float], ratio: list[float], u: list[float]) -> list[int]:
    """`torchvision.transforms.RandomErasing.get_params`, its random numbers given; zeros for no rectangle."""
    for area_draw, aspect_draw in zip(u[:10], u[10:20], strict=True):
        erase_area = height * width * (scale[0] + area_draw * (scale[1] - scale[0]))
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + aspect_draw * (high - low))
        h, w = round(math.sqrt(erase_area * aspect)), round(math.sqrt(erase_area / aspect))
        if not (h < height and w < width):
            continue
        return [math.floor(u[20] * (height - h + 1)), math.floor(u[21] * (width - w + 1)), h, w]
    return [0, 0, 0, 0]


ERASED = ((0.02, 0.33), (0.3, 3.3))  # torchvision's defaults


@pytest.mark.parametrize("law", [ERASED, ((0.5, 1.0), (0.01, 100.0)), ((1.0, 1.0), (1.0, 1.0))])
def test_erased_window_follows_torchvision(law: tuple[tuple[float, float], tuple[float, float]]) -> None:
    sizes, u = _some_sizes(2000), _draws(2000)
    windows = geometry.erased_window(sizes[:, 0], sizes[:, 1], *law, u)
    scale, ratio = map(list, law)
    expected = [
        _torchvision_erasing(h, w, scale, ratio, row) for (h, w), row in zip(sizes.tolist(), u.tolist(), strict=True)
    ]
    # Python rounds halves to even, which matters on images of a few pixels
    assert (windows != expected).any(axis=1).mean() < 0.02


def test_erased_windows_are_smaller_than_their_images() -> None:
    sizes = _some_sizes(4000)
    u = _draws(len(sizes))
    u[::7], u[1::7] = 0.0, LARGEST_U
    for scale, ratio in (ERASED, ((0.9, 1.0), (0.5, 2.0)), ((0.01, 0.02), (0.01, 100.0))):
        y, x, height, width = geometry.erased_window(sizes[:, 0], sizes[:, 1], scale, ratio, u).T
        assert (y >= 0).all() and (x >= 0).all() and (height >= 0).all() and (width >= 0).all()
        assert (y + height <= sizes[:, 0]).all() and (x + width <= sizes[:, 1]).all()
        assert (height < sizes[:, 0]).all() and (width < sizes[:, 1]).all()


def test_erased_area_is_uniform_in_its_scale() -> None:
    windows = geometry.erased_window(4000, 4000, (0.02, 0.3), ERASED[1], _draws(40_000))
    _assert_uniform(np.histogram(windows[:, 2] * windows[:, 3] / 4000**2, 20, (0.02, 0.3))[0])


def test_erased_aspect_is_uniform_in_its_logarithm() -> None:
    """Of height to width, the other way round than a crop's: here twice as often taller than wide."""
    windows = geometry.erased_window(4000, 4000, (0.02, 0.2), (0.5, 4.0), _draws(40_000))
    log_aspect = np.log2(windows[:, 2] / windows[:, 3])
    assert log_aspect.min() > -1.01 and log_aspect.max() < 2.01
    _assert_uniform(np.histogram(log_aspect, 20, (-1, 2))[0])


def test_erased_position_is_uniform() -> None:
    windows = geometry.erased_window(5, 6, (0.2, 0.2), (1.5, 1.5), _draws(40_000))
    assert np.unique(windows[:, 2:], axis=0).tolist() == [[3, 2]]
    _assert_uniform(np.bincount(windows[:, 0] * 5 + windows[:, 1]))


def test_the_first_try_that_fits_is_erased() -> None:
    u = np.full(geometry.RESIZED_CROP_WORDS, 0.5)
    u[:3], u[20:] = (0.999, 0.999, 0.25), (0.0, LARGEST_U)  # 100 rows, 100 rows, 50 rows, then 71 seven times
    assert geometry.erased_window(100, 100, (1e-9, 1.0), (1.0, 1.0), u).tolist() == [0, 50, 50, 50]


@pytest.mark.parametrize("size", [(1, 500), (500, 1), (10, 400), (400, 10)])
def test_where_nothing_fits_nothing_is_erased(size: tuple[int, int]) -> None:
    """A square of nine tenths of a stripe's area has longer sides than the stripe's shorter one."""
    windows = geometry.erased_window(*size, (0.9, 1.0), (1.0, 1.0), _draws(50))
    assert windows.tolist() == [[0, 0, 0, 0]] * 50


def _turned(pixels: Ints, angle: float) -> Floats:
    """The pixel each place shows, nearest, 0 from outside; and how far off its centre the place lands."""
    height, width = pixels.shape
    y, x = np.mgrid[0:height, 0:width] + 0.5
    matrix = geometry.rotation(height, width, angle)
    at_x, at_y = matrix @ np.stack([x.ravel(), y.ravel(), np.ones(height * width)])
    column, row = np.floor(at_x).astype(int), np.floor(at_y).astype(int)
    assert np.abs([at_x - column - 0.5, at_y - row - 0.5]).max() < 1e-12
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    shown = pixels[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    return np.where(inside, shown, 0).reshape(height, width)


@pytest.mark.parametrize("turns", [-2, -1, 0, 1, 2, 4])
@pytest.mark.parametrize("side", [1, 4, 5])
def test_quarter_turns_are_numpys(side: int, turns: int) -> None:
    """Counter-clockwise where positive."""
    pixels = np.arange(1, side * side + 1).reshape(side, side)
    np.testing.assert_array_equal(_turned(pixels, turns * np.pi / 2), np.rot90(pixels, turns))


def test_a_quarter_turn_keeps_the_size() -> None:
    """The middle square of a wide image turns; beside it there is nothing to show."""
    pixels = np.arange(1, 3 * 5 + 1).reshape(3, 5)
    expected = np.zeros((3, 5), np.int64)
    expected[:, 1:4] = np.rot90(pixels[:, 1:4])
    np.testing.assert_array_equal(_turned(pixels, np.pi / 2), expected)


@pytest.mark.parametrize("size", [(4, 6), (7, 3), (224, 224)])
def test_rotations_keep_the_centre_and_all_distances(size: tuple[int, int]) -> None:
    angles = np.linspace(-7, 7, 29)
    matrices = geometry.rotation(*size, angles)
    assert matrices.shape == (29, 2, 3)
    centre = np.array([size[1] / 2, size[0] / 2, 1])
    np.testing.assert_allclose(matrices @ centre, np.tile(centre[:2], (29, 1)), atol=1e-12)
    linear = matrices[:, :, :2]
    np.testing.assert_allclose(linear @ linear.transpose(0, 2, 1), np.tile(np.eye(2), (29, 1, 1)), atol=1e-14)
    np.testing.assert_allclose(np.linalg.det(linear), 1)
    np.testing.assert_allclose(np.arctan2(linear[:, 1, 0], linear[:, 0, 0]), np.angle(np.exp(1j * angles)), atol=1e-12)


def test_rotations_of_columns_of_images() -> None:
    sizes, angles = _some_sizes(20), np.linspace(-3, 3, 20)
    matrices = geometry.rotation(sizes[:, 0], sizes[:, 1], angles)
    for (height, width), angle, matrix in zip(sizes.tolist(), angles, matrices, strict=True):
        np.testing.assert_array_equal(geometry.rotation(height, width, angle), matrix)


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
        one = geometry.erased_window(height, width, *ERASED, draws)
        assert (one == geometry.erased_window(sizes[:, 0], sizes[:, 1], *ERASED, u)[place]).all()
        one = geometry.random_window(height, width, 20, 30, draws[:2])
        assert (one == geometry.random_window(sizes[:, 0], sizes[:, 1], 20, 30, u[:, :2])[place]).all()
