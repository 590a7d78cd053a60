"""Ops: what they refuse, and what they make of sizes and draws, worked out by hand."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
from dali_pipe import ops
from dali_pipe.geometry import Floats, Ints

NAN = float("nan")
SIZES = np.array([[100, 80], [64, 64], [30, 90], [640, 480]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dp.RandomCrop(0), r"`size` must be a positive int or \(height, width\)\. Received: size=0$"),
        (lambda: dp.CenterCrop(-1), "size=-1"),
        (lambda: dp.CenterCrop((1, 2, 3)), r"Received: size=\(1, 2, 3\)"),  # type: ignore[arg-type]
        (lambda: dp.CenterCrop((10, 0)), r"Received: size=\(10, 0\)"),
        (lambda: dp.CenterCrop(2.5), r"`size` must be .* Received: size=2\.5"),  # type: ignore[arg-type]
        (lambda: dp.CenterCrop((2.5, 3.0)), "`size` must be"),  # type: ignore[arg-type]
        (lambda: dp.CenterCrop(None), "Received: size=None"),  # type: ignore[arg-type]
        (lambda: dp.CenterCrop("32"), "Received: size='32'"),  # type: ignore[arg-type]
        (lambda: dp.CenterCrop(65536), "size=65536"),  # no JPEG is larger
        (lambda: dp.Resize(0), "`size` must be a positive int"),
        (lambda: dp.ResizeShorter(0), "`size` must be a positive int. Received: size=0"),
        (lambda: dp.ResizeShorter((256, 256)), "`size` must be a positive int. Received"),  # type: ignore[arg-type]
        (lambda: dp.RandomResizedCrop(8, scale=(0.0, 1.0)), r"`scale` must be \(low, high\) with 0.0 < low <= high"),
        (lambda: dp.RandomResizedCrop(8, scale=(0.5, 1.1)), r"<= 1.0\. Received: scale=\(0.5, 1.1\)"),
        (lambda: dp.RandomResizedCrop(8, scale=(0.9, 0.1)), "`scale` must be"),
        (lambda: dp.RandomResizedCrop(8, scale=(NAN, 1.0)), "`scale` must be"),
        (lambda: dp.RandomResizedCrop(8, scale=(0.1, 0.2, 0.3)), "`scale` must be"),  # type: ignore[arg-type]
        (lambda: dp.RandomResizedCrop(8, scale=0.5), "Received: scale=0.5"),  # type: ignore[arg-type]
        (lambda: dp.RandomResizedCrop(8, ratio=(0.0, 1.0)), "`ratio` must be"),
        (lambda: dp.RandomResizedCrop(8, ratio=(1.0, 1000.0)), "`ratio` must be"),
        (lambda: dp.RandomFlip(1.5), r"`horizontal` must be in \[0, 1\]\. Received: horizontal=1.5"),
        (lambda: dp.RandomFlip(-0.1), r"`horizontal` must be in \[0, 1\]\. Received: horizontal=-0.1"),
        (lambda: dp.RandomFlip(vertical=NAN), r"`vertical` must be in \[0, 1\]\. Received: vertical=nan"),
        (lambda: dp.RandomFlip(vertical=1.01), "Received: vertical=1.01"),
        (lambda: dp.Pad(-1), r"`size` must be pixels, \(vertical, horizontal\) or .* Received: size=-1$"),
        (lambda: dp.Pad(65536), "Received: size=65536"),
        (lambda: dp.Pad(1.5), "`size` must be pixels"),  # type: ignore[arg-type]
        (lambda: dp.Pad((1, 2, 3)), r"Received: size=\(1, 2, 3\)"),  # type: ignore[arg-type]
        (lambda: dp.Pad(((1, 2), (3, -4))), r"Received: size=\(\(1, 2\), \(3, -4\)\)"),
        (lambda: dp.Pad(((1, 2, 3), 4)), r"\(\(top, bottom\), \(left, right\)\)\. Received"),  # type: ignore[arg-type]
        (lambda: dp.Pad("ab"), "Received: size='ab'"),  # type: ignore[arg-type]
        (lambda: dp.Pad(1, fill=256), "`fill` must be an int from 0 to 255. Received: fill=256"),
        (lambda: dp.Pad(1, fill=-1), "Received: fill=-1"),
        (lambda: dp.Pad(1, fill=0.5), "`fill` must be an int .* Received: fill=0.5"),  # type: ignore[arg-type]
        (lambda: dp.RandomRotation(10, -10), "`lower` and `upper` must be -360.0 <= lower <= upper <= 360.0. Received"),
        (lambda: dp.RandomRotation(-361, 0), "Received: lower=-361, upper=0"),
        (lambda: dp.RandomRotation(0, 361), "Received: lower=0, upper=361"),
        (lambda: dp.RandomRotation(NAN), "Received: lower=nan"),
        (lambda: dp.RandomRotation(fill=300), "`fill` must be an int from 0 to 255. Received: fill=300"),
        (lambda: dp.RandomErasing(1.5), r"`probability` must be in \[0, 1\]\. Received: probability=1.5"),
        (lambda: dp.RandomErasing(NAN), "Received: probability=nan"),
        (lambda: dp.RandomErasing(scale=(0.0, 0.5)), "`scale` must be .* 0.0 < low <= high <= 1.0. Received"),
        (lambda: dp.RandomErasing(scale=(0.5, 1.5)), r"Received: scale=\(0.5, 1.5\)"),
        (lambda: dp.RandomErasing(ratio=(0.0, 1.0)), "`ratio` must be .* 0.0 < low <= high <= 100.0. Received"),
        (lambda: dp.RandomErasing(ratio=(3.3, 0.3)), r"Received: ratio=\(3.3, 0.3\)"),
        (lambda: dp.RandomErasing(fill=-3), "`fill` must be an int from 0 to 255. Received: fill=-3"),
        (lambda: dp.Normalize(std=(1.0, 0.0, 1.0)), "`std` must be positive. Received"),
        (lambda: dp.Normalize(std=(1.0, 1.0, -1.0)), "`std` must be positive"),
        (lambda: dp.Normalize(mean=(1.0, 1.0)), "`mean` must be three finite numbers, red first"),  # type: ignore[arg-type]
        (lambda: dp.Normalize(mean=(0.0, 0.0, float("inf"))), r"`mean` must be .* Received: mean=\(0.0, 0.0, inf\)"),
        (lambda: dp.Normalize(mean=0.5), r"`mean` must be .* Received: mean=0\.5"),  # type: ignore[arg-type]
    ],
)
def test_refuses(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("size", [7, np.int64(7), (7, 7), [7, 7], np.array([7, 7])])
def test_sizes_may_be_given_in_many_ways(size: Any) -> None:
    assert dp.CenterCrop(size) == dp.CenterCrop((7, 7))
    assert dp.Resize(size).shape == (7, 7)


@pytest.mark.parametrize(
    ("size", "borders"),
    [
        (3, ((3, 3), (3, 3))),
        (0, ((0, 0), (0, 0))),
        ((1, 2), ((1, 1), (2, 2))),
        (((1, 2), (3, 4)), ((1, 2), (3, 4))),
        ([[1, 2], [3, 4]], ((1, 2), (3, 4))),
        (np.array([[1, 2], [3, 4]]), ((1, 2), (3, 4))),
    ],
)
def test_borders_are_given_as_keras_takes_them(size: Any, borders: tuple[tuple[int, int], tuple[int, int]]) -> None:
    op = dp.Pad(size)
    assert op.borders == borders
    assert op == pickle.loads(pickle.dumps(op)) == dp.Pad(borders)
    assert hash(op) == hash(dp.Pad(borders))


@pytest.mark.parametrize("op", [dp.Resize(8), dp.ResizeShorter(8), dp.RandomResizedCrop(8)])
def test_nothing_is_antialiased_unless_asked_for(op: Any) -> None:
    assert op.antialias is False


@pytest.mark.parametrize(
    "op",
    [
        dp.RandomCrop(20),
        dp.CenterCrop((20, 70)),
        dp.RandomResizedCrop(20),
        dp.Resize((20, 30)),
        dp.ResizeShorter(20),
        dp.RandomFlip(),
        dp.Pad(((1, 2), (3, 4))),
        dp.RandomRotation(),
        dp.RandomErasing(),
        dp.RandomBrightness(),
        dp.RandomContrast(),
        dp.RandomSaturation(),
        dp.RandomHue(),
        dp.Grayscale(),
        dp.Normalize(),
    ],
    ids=lambda op: type(op).__name__,
)
def test_an_op_takes_its_words_and_gives_its_lanes_and_sizes(op: dp.Op) -> None:
    lanes, sizes = op.parameters(SIZES, np.random.default_rng(0).random((len(SIZES), op.words)))
    assert lanes.shape == (len(SIZES), op.lanes)
    assert {lanes.dtype, sizes.dtype} == {np.dtype(np.int64)}
    assert sizes.tolist() == [list(op.output((height, width))) for height, width in SIZES.tolist()]


def test_lanes_hold_floats_bit_by_bit() -> None:
    values = np.array([[0.1, -0.0], [np.inf, 5e-324]])
    assert ops.bits(values).view(np.float64).tobytes() == values.tobytes()
    assert ops.bits(values.T).view(np.float64).tolist() == values.T.tolist()  # whose rows do not lie in a row


@pytest.mark.parametrize(("probability", "bits"), [(0.0, [0, 1]), (1.0, [1, 0])])
def test_flips_of_a_sure_kind(probability: float, bits: list[int]) -> None:
    flip = dp.RandomFlip(probability, 1 - probability)
    lanes, _ = flip.parameters(SIZES, np.random.default_rng(0).random((4, 2)))
    assert lanes.tolist() == [bits] * 4


@pytest.mark.parametrize(("probability", "u", "bit"), [(0.0, 0.0, 0), (0.5, 0.5, 0), (0.5, 0.499, 1), (1.0, 0.999, 1)])
def test_a_flip_is_a_draw_below_its_probability(probability: float, u: float, bit: int) -> None:
    horizontal, _ = dp.RandomFlip(probability).parameters(SIZES[:1], np.array([[u, 0.0]]))
    vertical, _ = dp.RandomFlip(0.0, probability).parameters(SIZES[:1], np.array([[0.0, u]]))
    assert (horizontal.tolist(), vertical.tolist()) == ([[bit, 0]], [[0, bit]])


def test_flips_are_horizontal_unless_asked_for() -> None:
    assert dp.RandomFlip() == dp.RandomFlip(horizontal=0.5, vertical=0.0)


def test_a_border_makes_images_larger() -> None:
    op = dp.Pad(((1, 2), (30, 40)), fill=7)
    lanes, sizes = op.parameters(SIZES, np.empty((4, 0)))
    assert lanes.tolist() == sizes.tolist() == [[103, 150], [67, 134], [33, 160], [643, 550]]
    assert op.output((None, None)) == (None, None)
    assert op.output((5, None)) == (8, None)


def _matrix(op: dp.RandomRotation, size: tuple[int, int], u: float = 0.0) -> list[list[float]]:
    lanes, _ = op.parameters(np.array([size]), np.array([[u]]))
    matrix: list[list[float]] = lanes.view(np.float64).reshape(2, 3).tolist()
    return matrix


@pytest.mark.parametrize(
    ("angle", "matrix"),
    [  # of a picture of 4 rows and 6 columns, whose centre is (3, 2)
        (0, [[1, 0, 0], [0, 1, 0]]),
        (90, [[0, -1, 5], [1, 0, -1]]),
        (-90, [[0, 1, 1], [-1, 0, 5]]),
        (180, [[-1, 0, 6], [0, -1, 4]]),
        (360, [[1, 0, 0], [0, 1, 0]]),
    ],
)
def test_rotation_matrices(angle: float, matrix: list[list[float]]) -> None:
    np.testing.assert_allclose(_matrix(dp.RandomRotation(angle, angle), (4, 6)), matrix, atol=1e-14)


def test_angles_are_uniform_between_their_bounds() -> None:
    op = dp.RandomRotation(-10, 30)
    for u, angle in ((0.0, -10), (0.25, 0), (0.5, 10), (0.75, 20)):
        fixed = dp.RandomRotation(angle, angle)
        np.testing.assert_allclose(_matrix(op, (7, 5), u), _matrix(fixed, (7, 5)), atol=1e-14)


def _erasing(tried: float, area: float, aspect: float, y: float, x: float) -> Floats:
    return np.array([[tried, *[area] * 10, *[aspect] * 10, y, x]])


def _erased(op: dp.RandomErasing, size: tuple[int, int], u: Floats) -> list[int]:
    lanes, sizes = op.parameters(np.array([size]), u)
    assert sizes.tolist() == [list(size)]
    window: list[int] = lanes[0].tolist()
    return window


@pytest.mark.parametrize(
    ("size", "u", "window"),
    [
        ((100, 100), _erasing(0.0, 0.0, 0.5, 0.5, 0.25), [40, 20, 20, 20]),  # floor(0.5 · 81), floor(0.25 · 81)
        ((100, 100), _erasing(0.29, 0.0, 0.0, 0.0, 0.0), [0, 0, 10, 40]),  # aspect 1/4: height 10 of 400 pixels
        ((100, 100), _erasing(0.0, 0.0, 1 - 1e-12, 0.999, 0.999), [60, 90, 40, 10]),
        ((50, 200), _erasing(0.0, 1.0, 0.5, 0.0, 0.5), [0, 80, 40, 40]),  # 0.16 of the area; floor(0.5 · 161)
        ((100, 100), _erasing(0.3, 0.0, 0.5, 0.5, 0.25), [0, 0, 0, 0]),  # not below the probability
        ((10, 400), _erasing(0.0, 1.0, 0.5, 0.5, 0.5), [0, 0, 0, 0]),  # 25 rows are more than there are
    ],
)
def test_erased_rectangles(size: tuple[int, int], u: Floats, window: list[int]) -> None:
    op = dp.RandomErasing(0.3, scale=(0.04, 0.16), ratio=(0.25, 4.0))
    assert _erased(op, size, u) == window


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_a_rectangle_is_erased_with_its_probability(probability: float, share: float) -> None:
    u = np.random.default_rng(0).random((20_000, dp.RandomErasing.words))
    sizes: Ints = np.broadcast_to([100, 120], (20_000, 2))
    lanes, _ = dp.RandomErasing(probability).parameters(sizes, u)
    assert (lanes[:, 2] > 0).mean() == pytest.approx(share, abs=0.0125)  # four deviations


def test_defaults_are_torchvisions() -> None:
    assert dp.RandomErasing() == dp.RandomErasing(0.5, scale=(0.02, 0.33), ratio=(0.3, 3.3), fill=0)
    assert dp.RandomResizedCrop(8) == dp.RandomResizedCrop(8, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
