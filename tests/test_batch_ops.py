"""What happens to labels and between images: the laws of torchvision's MixUp and CutMix, and worked examples."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import dali_pipe as dp
from dali_pipe.batch_ops import Mix
from dali_pipe.geometry import Floats, Ints

NAN, LARGEST_U = float("nan"), 1 - 2**-24  # a plan's draws are multiples of 2⁻²⁴ below 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dp.OneHot(0), "`classes` must be a positive int. Received: classes=0"),
        (lambda: dp.OneHot(-3), "Received: classes=-3"),
        (lambda: dp.OneHot(10.0), "Received: classes=10.0"),  # type: ignore[arg-type]
        (lambda: dp.OneHot(10, -0.1), r"`smoothing` must be in \[0, 1\]. Received: smoothing=-0.1"),
        (lambda: dp.OneHot(10, 1.1), "Received: smoothing=1.1"),
        (lambda: dp.OneHot(10, NAN), "Received: smoothing=nan"),
        (lambda: dp.MixUp(0.0), "`alpha` must be positive and finite. Received: alpha=0.0"),
        (lambda: dp.MixUp(-0.2), "Received: alpha=-0.2"),
        (lambda: dp.MixUp(NAN), "Received: alpha=nan"),
        (lambda: dp.CutMix(math.inf), "`alpha` must be positive and finite. Received: alpha=inf"),
        (lambda: dp.CutMix(0), "Received: alpha=0"),
    ],
)
def test_refuses(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("op", "on", "off"),
    [
        (dp.OneHot(4), 1.0, 0.0),
        (dp.OneHot(4, 0.2), 0.85, 0.05),
        (dp.OneHot(1000, 0.1), 0.9001, 0.0001),
        (dp.OneHot(4, 1.0), 0.25, 0.25),
        (dp.OneHot(1, 0.3), 1.0, 0.3),
    ],
)
def test_smoothing(op: dp.OneHot, on: float, off: float) -> None:
    assert (op.on, op.off) == pytest.approx((on, off), rel=1e-12)
    assert op.on + (op.classes - 1) * op.off == pytest.approx(1.0, rel=1e-12)


def test_defaults() -> None:
    assert (dp.OneHot(3), dp.MixUp(), dp.CutMix()) == (dp.OneHot(3, smoothing=0.0), dp.MixUp(0.2), dp.CutMix(1.0))


UNIFORM = np.random.default_rng(0).random(50_000)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 2.0, 8.0])
def test_ratios_have_the_moments_of_the_beta_distribution(alpha: float) -> None:
    ratio = dp.MixUp(alpha).ratio(UNIFORM)
    variance = 1 / (4 * (2 * alpha + 1))
    kurtosis = 3 - 6 / (2 * alpha + 3)
    assert ratio.min() >= 0 and ratio.max() <= 1
    assert ratio.mean() == pytest.approx(0.5, abs=4 * math.sqrt(variance / 50_000))
    assert ratio.var() == pytest.approx(variance, rel=4 * math.sqrt((kurtosis - 1) / 50_000))
    assert ((ratio - 0.5) ** 4).mean() == pytest.approx(kurtosis * variance**2, rel=0.05)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_ratios_have_the_quantiles_of_numpys_beta(alpha: float) -> None:
    """Kolmogorov and Smirnov's distance of two samples, at a level of one in ten thousand."""
    ours = np.sort(dp.CutMix(alpha).ratio(UNIFORM))
    numpys = np.sort(np.random.default_rng(1).beta(alpha, alpha, 50_000))
    both = np.concatenate([ours, numpys])
    distance = np.abs(np.searchsorted(ours, both, "right") - np.searchsorted(numpys, both, "right")).max() / 50_000
    assert distance < 2.23 * math.sqrt(2 / 50_000)


@pytest.mark.parametrize(
    ("alpha", "u", "ratio"),
    [
        (1.0, 0.3, 0.3),  # uniform
        (0.5, 0.25, math.sin(math.pi / 8) ** 2),  # the arcsine law
        (2.0, 0.15625, 0.25),  # 3 λ² − 2 λ³
        (3.7, 0.5, 0.5),
        (0.2, 0.0, 0.0),
        (0.2, LARGEST_U, 1.0),
    ],
)
def test_a_ratio_inverts_the_distribution(alpha: float, u: float, ratio: float) -> None:
    assert dp.MixUp(alpha).ratio(np.array([u])) == pytest.approx(ratio, rel=1e-9)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 1e5, 1e300])
def test_ratios_of_extreme_alphas_are_numbers(alpha: float) -> None:
    ratio = dp.MixUp(alpha).ratio(np.array([0.0, 2**-24, 0.3, 0.5, 0.7, LARGEST_U]))
    assert np.isfinite(ratio).all()
    assert (np.diff(ratio) >= 0).all()


def _parameters(op: Mix, count: int, batch_size: int) -> Ints:
    """Of images of 48 rows and 64 columns."""
    u = np.random.default_rng(0).random((-(-count // batch_size), op.words))
    lanes = op.parameters(count, batch_size, (48, 64), u)
    assert lanes.shape == (count, op.lanes)
    assert lanes.dtype == np.int64
    return lanes


def _ratios(lanes: Ints) -> Floats:
    return np.ascontiguousarray(lanes[:, -1]).view(np.float64)


@pytest.mark.parametrize("op", [dp.MixUp(), dp.CutMix()])
@pytest.mark.parametrize(
    ("count", "batch_size", "partners"),
    [
        (8, 4, [3, 0, 1, 2, 3, 0, 1, 2]),
        (10, 4, [3, 0, 1, 2, 3, 0, 1, 2, 1, 0]),  # two in the last batch
        (9, 4, [3, 0, 1, 2, 3, 0, 1, 2, 0]),  # alone
        (3, 4, [2, 0, 1]),
        (3, 1, [0, 0, 0]),
    ],
)
def test_each_image_goes_with_the_one_before_it_and_the_first_with_the_last(
    op: Mix, count: int, batch_size: int, partners: list[int]
) -> None:
    lanes = _parameters(op, count, batch_size)
    assert lanes[:, 0].tolist() == partners
    batches = np.arange(count) // batch_size
    for batch in range(batches[-1] + 1):
        assert len(np.unique(lanes[batches == batch, 1:], axis=0)) == 1  # one λ, and one rectangle
    assert len(np.unique(lanes[:, -1])) == batches[-1] + 1


def test_mixup_hands_on_its_ratio() -> None:
    u = np.array([[0.25], [0.75]])
    lanes = dp.MixUp(1.0).parameters(4, 2, (48, 64), u)
    np.testing.assert_allclose(_ratios(lanes), [0.25, 0.25, 0.75, 0.75], rtol=1e-12)


def _torchvision(shape: tuple[int, int], ratio: float, u: list[float]) -> list[float]:
    """`torchvision.transforms.v2.CutMix.make_params`, its random numbers given: y1, x1, y2, x2, λ."""
    height, width = shape
    r_y, r_x = (math.floor(draw * side) for draw, side in zip(u, shape, strict=True))  # torch.randint(side)
    r = 0.5 * math.sqrt(1.0 - ratio)
    r_w_half, r_h_half = int(r * width), int(r * height)
    x1, y1 = max(r_x - r_w_half, 0), max(r_y - r_h_half, 0)
    x2, y2 = min(r_x + r_w_half, width), min(r_y + r_h_half, height)
    return [y1, x1, y2, x2, 1.0 - (x2 - x1) * (y2 - y1) / (width * height)]


@pytest.mark.parametrize("shape", [(48, 64), (224, 224), (7, 300), (1, 1)])
@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_rectangles_are_torchvisions(shape: tuple[int, int], alpha: float) -> None:
    op, u = dp.CutMix(alpha), np.random.default_rng(2).random((500, 3))
    u[:3] = [[0.0, 0.0, 0.0], [LARGEST_U] * 3, [0.0, LARGEST_U, 0.0]]
    lanes = op.batch_parameters(shape, u)
    for row, ratio, draws, left in zip(lanes.tolist(), op.ratio(u[:, 0]), u.tolist(), _ratios(lanes), strict=True):
        y, x, height, width = row[:4]
        assert [y, x, y + height, x + width, left] == _torchvision(shape, ratio, draws[1:])


@pytest.mark.parametrize(
    ("u", "rectangle", "left"),
    [  # of 100 rows and 60 columns; with alpha 1 the draw is the ratio
        ((0.75, 0.5, 0.5), [25, 15, 50, 30], 0.75),
        ((0.75, 0.0, 0.0), [0, 0, 25, 15], 0.9375),  # three quarters are beyond the corner
        ((0.75, 0.5, 0.99), [25, 44, 50, 16], 1 - 50 * 16 / 6000),
        ((0.0, 0.5, 0.5), [0, 0, 100, 60], 0.0),
        ((LARGEST_U, 0.5, 0.5), [50, 30, 0, 0], 1.0),
    ],
)
def test_rectangles(u: tuple[float, float, float], rectangle: list[int], left: float) -> None:
    lanes = dp.CutMix().batch_parameters((100, 60), np.array([u]))
    assert lanes[0, :4].tolist() == rectangle
    assert _ratios(lanes) == pytest.approx(left, abs=1e-15)


def test_rectangles_lie_inside_and_labels_count_what_is_left() -> None:
    lanes = _parameters(dp.CutMix(0.4), 20_000, 1)
    y, x, height, width = lanes[:, 1:5].T
    assert (lanes[:, 1:5] >= 0).all()
    assert (y + height <= 48).all() and (x + width <= 64).all()
    np.testing.assert_array_equal(_ratios(lanes), 1 - height * width / (48 * 64))
    assert (height * width == 0).any() and (height * width == 48 * 64).sum() == 0


def test_rectangles_have_uniform_centres() -> None:
    """Of those that are not cut at an edge."""
    u = np.random.default_rng(4).random((60_000, 3))
    u[:, 0] = 0.99  # a rectangle of 4 rows and 6 columns
    y, x, height, width = dp.CutMix().batch_parameters((40, 60), u)[:, :4].T
    whole = (height == 4) & (width == 6)
    counts = np.bincount(y[whole] * 55 + x[whole], minlength=37 * 55)
    assert whole.mean() == pytest.approx(37 * 55 / 2400, abs=0.006)
    expected = counts.mean()
    chi_square, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)
