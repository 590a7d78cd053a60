"""Ops on colours: their formulas, worked out by hand and held against TensorFlow's and Pillow's."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import dali_pipe as dp
from dali_pipe.color_ops import ColorMatrix
from dali_pipe.geometry import Floats, Ints

NAN = float("nan")
U = np.array([[0.0], [0.25], [0.5], [1 - 2**-24]])
SIZES = np.array([[100, 80], [64, 64], [30, 90], [640, 480]])
PIXELS = np.random.default_rng(0).integers(0, 256, (500, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dp.RandomBrightness(0.3, 0.2),
            r"`lower` and `upper` must be -1.0 <= lower <= upper <= 1.0. Received: lower=0.3, upper=0.2$",
        ),
        (lambda: dp.RandomBrightness(-1.1, 0.0), "Received: lower=-1.1, upper=0.0"),
        (lambda: dp.RandomBrightness(0.0, 30), "Received: lower=0.0, upper=30"),  # grey levels
        (lambda: dp.RandomContrast(-0.1, 1.0), "must be 0.0 <= lower <= upper <= 100.0. Received: lower=-0.1"),
        (lambda: dp.RandomContrast(upper=NAN), "Received: lower=0.8, upper=nan"),
        (lambda: dp.RandomContrast(1.2, 0.8), "Received: lower=1.2, upper=0.8"),
        (lambda: dp.RandomSaturation(-0.5, 0.5), "must be 0.0 <= lower <= upper <= 100.0. Received: lower=-0.5"),
        (lambda: dp.RandomSaturation(0.0, 101.0), "Received: lower=0.0, upper=101.0"),
        (lambda: dp.RandomHue(-0.6, 0.0), "must be -0.5 <= lower <= upper <= 0.5. Received: lower=-0.6"),
        (lambda: dp.RandomHue(lower=NAN), "Received: lower=nan, upper=0.05"),
        (lambda: dp.RandomHue(0.0, 18.0), "Received: lower=0.0, upper=18.0"),  # degrees
    ],
)
def test_refuses(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def _lanes(op: dp.Op, u: Floats = U) -> Ints:
    lanes, sizes = op.parameters(SIZES[: len(u)], u)
    np.testing.assert_array_equal(sizes, SIZES[: len(u)])
    return lanes


def test_factors_are_uniform_between_their_bounds() -> None:
    factors = dp.RandomContrast(0.5, 2.5).factor(U)
    np.testing.assert_allclose(factors, [0.5, 1.0, 1.5, 2.5], rtol=1e-7)
    assert factors.max() < 2.5


@pytest.mark.parametrize(
    ("value", "levels"),
    [(0.0, 0), (1.0, 255), (-1.0, -255), (0.1, 26), (-0.1, -25), (0.3, 77), (0.01, 3), (-0.01, -3)],  # 25.5 goes up
)
def test_brightness_adds_whole_grey_levels(value: float, levels: int) -> None:
    assert _lanes(dp.RandomBrightness(value, value)).tolist() == [[levels]] * 4


def test_brightness_of_each_image() -> None:
    assert _lanes(dp.RandomBrightness(-1.0, 1.0)).tolist() == [[-255], [-127], [0], [255]]


def test_contrast_hands_on_its_factor() -> None:
    factors = _lanes(dp.RandomContrast(0.5, 1.5)).view(np.float64)
    assert factors[:3].tolist() == [[0.5], [0.75], [1.0]]


def _matrix(op: ColorMatrix) -> Floats:
    matrix: Floats = _lanes(op).view(np.float64)[0].reshape(3, 3)
    return matrix


def _turn(f: float) -> Floats:
    return _matrix(dp.RandomHue(f, f))


def _stretch(f: float) -> Floats:
    return _matrix(dp.RandomSaturation(f, f))


GREY = np.tile([0.299, 0.587, 0.114], (3, 1))


def test_saturation_blends_with_grey() -> None:
    np.testing.assert_array_equal(_stretch(1.0), np.eye(3))
    np.testing.assert_array_equal(_stretch(0.0), GREY)
    pixel = np.array([200, 100, 50])  # whose grey is 59.8 + 58.7 + 5.7
    np.testing.assert_allclose(_stretch(0.0) @ pixel, [124.2] * 3)
    np.testing.assert_allclose(_stretch(0.5) @ pixel, [162.1, 112.1, 87.1])
    np.testing.assert_allclose(_stretch(2.0) @ pixel, [275.8, 75.8, -24.2])


def test_matrices_lie_row_by_row() -> None:
    """Column by column, a red pixel would not be grey."""
    np.testing.assert_allclose(_stretch(0.0) @ [255, 0, 0], [0.299 * 255] * 3)
    assert _stretch(0.5).ravel().tolist()[:3] == pytest.approx([0.6495, 0.2935, 0.057])


def test_every_image_has_a_matrix_of_its_own() -> None:
    matrices = _lanes(dp.RandomSaturation(0.0, 2.0)).view(np.float64).reshape(-1, 3, 3)
    for matrix, f in zip(matrices, (0.0, 0.5, 1.0, 2.0), strict=True):
        np.testing.assert_allclose(matrix, _stretch(f), atol=1e-6)
    turns = _lanes(dp.RandomHue(-0.5, 0.5)).view(np.float64).reshape(-1, 3, 3)
    for matrix, f in zip(turns, (-0.5, -0.25, 0.0, 0.5), strict=True):
        np.testing.assert_allclose(matrix, _turn(f), atol=1e-6)


HUES = [-0.5, -0.21, -0.05, 0.0, 0.1, 0.25, 0.5]


@pytest.mark.parametrize("f", HUES)
def test_a_turn_of_the_hue_keeps_luma(f: float) -> None:
    np.testing.assert_allclose(GREY[0] @ _turn(f), GREY[0], atol=1e-14)


@pytest.mark.parametrize("f", HUES)
def test_a_turn_of_the_hue_keeps_greys(f: float) -> None:
    np.testing.assert_allclose(_turn(f) @ [255, 255, 255], [255, 255, 255], atol=1e-10)


def test_turns_of_the_hue_add_up_to_a_full_one() -> None:
    np.testing.assert_allclose(_turn(0.0), np.eye(3), atol=1e-14)
    np.testing.assert_allclose(_turn(0.5), _turn(-0.5), atol=1e-13)
    np.testing.assert_allclose(_turn(0.5) @ _turn(0.5), np.eye(3), atol=1e-13)
    np.testing.assert_allclose(np.linalg.matrix_power(_turn(0.1), 10), np.eye(3), atol=1e-13)
    np.testing.assert_allclose(_turn(0.1) @ _turn(0.15), _turn(0.25), atol=1e-13)
    assert np.abs(_turn(0.25) - np.eye(3)).max() > 0.5


@pytest.mark.parametrize("f", HUES)
def test_hue_turns_in_the_yiq_of_tensorflow(f: float) -> None:
    """Positive turns I towards Q."""
    y, i, q = np.moveaxis(tf.image.rgb_to_yiq(PIXELS.astype(np.float64)).numpy(), -1, 0)
    cos, sin = np.cos(2 * np.pi * f), np.sin(2 * np.pi * f)
    turned = np.stack([y, cos * i - sin * q, sin * i + cos * q], axis=-1)
    expected = tf.image.yiq_to_rgb(turned)
    np.testing.assert_allclose(PIXELS @ _turn(f).T, expected, atol=1.0)  # their coefficients have five digits


def test_grayscale_is_pillows_grey() -> None:
    grey = np.floor(PIXELS @ _matrix(dp.Grayscale()).T + 0.5)
    pillow = np.asarray(Image.fromarray(PIXELS[None].astype(np.uint8)).convert("L"))[0]
    assert np.abs(grey - pillow[:, None]).max() <= 1
    assert (grey == pillow[:, None]).mean() > 0.99
    np.testing.assert_array_equal(_matrix(dp.Grayscale()), GREY)


def test_grayscale_is_the_same_for_all() -> None:
    lanes, _ = dp.Grayscale().parameters(SIZES, np.empty((4, 0)))
    assert lanes.shape == (4, 9)
    assert len(np.unique(lanes, axis=0)) == 1
    assert dp.Grayscale().words == 0
