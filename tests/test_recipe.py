"""Recipes: what they refuse, what comes out, and the parameters that every engine takes from them."""

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

import dali_pipe as dp
from dali_pipe.geometry import Floats, Ints

SIZES = np.array([[100, 80], [64, 64], [30, 90], [640, 480]])


def _draw(stream: int, words: int) -> Floats:
    """Draws that tell their stream apart."""
    return np.random.default_rng(stream).random((len(SIZES), words))


def _parameters(*ops: dp.Op) -> Ints:
    return dp.Recipe(ops).parameters(SIZES, _draw)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dp.Recipe((dp.CenterCrop(8),), dtype="float64"), "uint8, float16, float32. Received: dtype='float64'"),  # type: ignore[arg-type]
        (lambda: dp.Recipe((dp.CenterCrop(8),), dct="slow"), '"accurate" or "fast". Received'),  # type: ignore[arg-type]
        (lambda: dp.Recipe((dp.Normalize(), dp.CenterCrop(8))), "`Normalize` must be the last op"),
        (lambda: dp.Recipe((dp.CenterCrop(8), dp.Normalize(), dp.Normalize())), "`Normalize` must be the last op"),
        (lambda: dp.Recipe(()), "must give every image the same size"),
        (lambda: dp.Recipe((dp.RandomFlip(),)), "end the geometry with a crop or a `Resize`"),
        (lambda: dp.Recipe((dp.ResizeShorter(8), dp.Normalize())), "must give every image the same size"),
        (lambda: dp.Recipe((dp.Pad(3), dp.RandomRotation(), dp.Grayscale())), "must give every image the same size"),
        (
            lambda: dp.Recipe((dp.CenterCrop(8),), mix=dp.MixUp(0.3)),
            r"`mix` needs labels that can be mixed: set `label=OneHot\(classes\)`\. Received: mix=MixUp\(alpha=0\.3\)",
        ),
    ],
)
def test_refuses(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("ops", [("crop",), (dp.CenterCrop,)])
def test_refuses_what_is_not_an_op(ops: Any) -> None:
    with pytest.raises(TypeError, match=r"`ops` must hold ops such as CenterCrop\(224\)\. Received"):
        dp.Recipe(ops)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label": 10}, r"`label` must be OneHot\(classes\) or None\. Received: label=10"),
        ({"label": dp.OneHot}, "Received: label=<class"),
        ({"label": dp.OneHot(10), "mix": 0.2}, r"`mix` must be MixUp\(\), CutMix\(\) or None\. Received: mix=0\.2"),
        ({"label": dp.OneHot(10), "mix": dp.CutMix}, "Received: mix=<class"),
        ({"ops": (dp.CenterCrop(8), dp.CutMix())}, r"`ops` must hold ops .* Received: CutMix\(alpha=1\.0\)"),
    ],
)
def test_refuses_label_and_mix_of_another_kind(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        dp.Recipe(**{"ops": (dp.CenterCrop(8),), **given})


def test_recipes_are_values() -> None:
    recipe = dp.imagenet_train(32)
    assert recipe == dp.imagenet_train((32, 32)) != dp.imagenet_train(33)
    assert hash(recipe) == hash(pickle.loads(pickle.dumps(recipe)))
    assert dp.Recipe([dp.CenterCrop(8)]).ops == (dp.CenterCrop(8),)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        recipe.dtype = "uint8"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ops", "shape"),
    [
        ((dp.CenterCrop((20, 30)),), (20, 30, 3)),
        ((dp.RandomCrop(9), dp.RandomFlip(), dp.Normalize()), (9, 9, 3)),
        ((dp.Resize((48, 64)), dp.ResizeShorter(24)), (24, 32, 3)),
        ((dp.ResizeShorter(36), dp.CenterCrop(32)), (32, 32, 3)),
        ((dp.RandomResizedCrop(40), dp.Resize((5, 7))), (5, 7, 3)),
        ((dp.RandomFlip(), dp.CenterCrop(8)), (8, 8, 3)),
        ((dp.Pad(4), dp.RandomCrop(8), dp.Pad(((1, 2), (3, 4)))), (11, 15, 3)),
        ((dp.CenterCrop(8), dp.RandomRotation(), dp.RandomErasing(), dp.RandomHue(), dp.Grayscale()), (8, 8, 3)),
        ((dp.Pad(1), dp.CenterCrop((16, 20)), dp.Pad((0, 6)), dp.ResizeShorter(8)), (8, 16, 3)),
    ],
)
def test_output_shape(ops: tuple[dp.Op, ...], shape: tuple[int, int, int]) -> None:
    assert dp.Recipe(ops).output_shape == shape


def test_a_uint8_recipe_leaves_its_normalisation_as_the_tail() -> None:
    recipe = dp.crop_train(32, dtype="uint8")
    assert recipe.tail == (dp.Normalize(),)
    assert recipe.steps == (dp.RandomCrop(32),)
    assert dp.Recipe((dp.CenterCrop(8),), "uint8").tail == ()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_float_recipe_has_no_tail(dtype: Any) -> None:
    recipe = dp.crop_train(32).with_dtype(dtype)
    assert (recipe.tail, recipe.normalize, recipe.dtype) == ((), dp.Normalize(), dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_steps_are_all_but_the_normalisation(dtype: Any) -> None:
    ops = (dp.RandomCrop(8), dp.RandomHue(), dp.Grayscale())
    for recipe in (dp.Recipe(ops, dtype), dp.Recipe((*ops, dp.Normalize()), dtype)):
        assert recipe.steps == ops
    assert dp.Recipe(ops, dtype).normalize is None


def test_labels_are_numbers_or_vectors() -> None:
    plain, one_hot = dp.crop_train(8), replace(dp.crop_train(8), label=dp.OneHot(7, 0.1))
    assert (plain.label_shape, plain.label_dtype) == ((), "int64")
    assert (one_hot.label_shape, one_hot.label_dtype) == ((7,), "float32")


MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


@pytest.mark.parametrize(
    ("recipe", "ops"),
    [
        (dp.crop_train(), (dp.RandomCrop(224), dp.Normalize())),
        (dp.crop_eval(), (dp.CenterCrop(224), dp.Normalize())),
        (
            dp.imagenet_train(),
            (dp.RandomResizedCrop(224, scale=(0.08, 1.0), ratio=(0.75, 4 / 3)), dp.RandomFlip(0.5), dp.Normalize()),
        ),
        (dp.imagenet_eval(), (dp.ResizeShorter(256), dp.CenterCrop(224), dp.Normalize())),
        (dp.imagenet_eval(448), (dp.ResizeShorter(512), dp.CenterCrop(448), dp.Normalize())),
        (dp.crop_train((20, 30)), (dp.RandomCrop((20, 30)), dp.Normalize())),
    ],
)
def test_presets(recipe: dp.Recipe, ops: tuple[dp.Op, ...]) -> None:
    assert recipe == dp.Recipe(ops, "float32", "accurate", False)
    normalize = recipe.ops[-1]
    assert isinstance(normalize, dp.Normalize)
    np.testing.assert_allclose([normalize.mean, normalize.std], [MEAN, STD], rtol=1e-15)


@pytest.mark.parametrize("preset", [dp.crop_train, dp.crop_eval, dp.imagenet_train, dp.imagenet_eval])
def test_presets_take_a_dtype(preset: Callable[..., dp.Recipe]) -> None:
    assert preset(64, dtype="uint8") == preset(64).with_dtype("uint8")


@pytest.mark.parametrize(
    ("recipe", "random"),
    [
        (dp.crop_train(), True),
        (dp.imagenet_train(), True),
        (dp.crop_eval(), False),
        (dp.imagenet_eval(), False),
        (dp.Recipe((dp.Pad(2), dp.CenterCrop(8), dp.Grayscale()), label=dp.OneHot(3, 0.1)), False),
        (dp.Recipe((dp.CenterCrop(8), dp.RandomHue())), True),
        (dp.Recipe((dp.CenterCrop(8),), label=dp.OneHot(3), mix=dp.MixUp()), True),
    ],
)
def test_a_recipe_knows_whether_it_draws(recipe: dp.Recipe, random: bool) -> None:
    assert recipe.random is random


def test_parameters_stand_side_by_side_in_the_order_of_the_ops() -> None:
    ops = (dp.RandomFlip(), dp.ResizeShorter(64), dp.RandomCrop(64), dp.RandomFlip(), dp.Normalize())
    recipe = dp.Recipe(ops)
    table = _parameters(*ops)
    assert recipe.lanes == table.shape[1] == 2 + 2 + 4 + 2
    assert table[:, 2:4].tolist() == [[80, 64], [64, 64], [64, 192], [85, 64]]
    assert table[:, 6:8].tolist() == [[64, 64]] * 4  # the crop sees the resized sizes


def test_parameters_are_made_of_the_draws() -> None:
    window, flip = _draw(1, 2), _draw(2, 2)
    table = _parameters(dp.RandomCrop(30), dp.RandomFlip(0.3, 0.6))
    np.testing.assert_array_equal(table[:, 0], np.floor(window[:, 0] * (SIZES[:, 0] - 29)))
    np.testing.assert_array_equal(table[:, 1], np.floor(window[:, 1] * (SIZES[:, 1] - 29)))
    np.testing.assert_array_equal(table[:, 4:], flip < [0.3, 0.6])


def test_a_crop_sees_the_border_that_was_added() -> None:
    table = _parameters(dp.Pad(((5, 0), (1, 2)), fill=9), dp.CenterCrop((101, 83)))
    assert table[:, :2].tolist() == [[105, 83], [69, 67], [35, 93], [645, 483]]
    assert table[0, 2:].tolist() == [2, 0, 101, 83]
    assert table[3, 2:].tolist() == [272, 200, 101, 83]


def test_recipes_without_parameters_have_no_columns() -> None:
    assert _parameters(dp.Resize(8), dp.Normalize()).shape == (4, 0)


def test_an_op_added_behind_changes_nobodys_parameters() -> None:
    first = _parameters(dp.RandomCrop(30), dp.RandomFlip())
    more = _parameters(dp.RandomCrop(30), dp.RandomFlip(), dp.RandomCrop(20), dp.RandomFlip())
    np.testing.assert_array_equal(more[:, :6], first)


def test_an_op_that_draws_nothing_changes_nobodys_draws() -> None:
    asked: list[tuple[int, int]] = []

    def draw(stream: int, words: int) -> Floats:
        asked.append((stream, words))
        return _draw(stream, words)

    ops = (dp.Resize(50), dp.RandomCrop(30), dp.Pad(2), dp.CenterCrop(20), dp.RandomResizedCrop(10), dp.RandomFlip())
    dp.Recipe((*ops, dp.Grayscale(), dp.RandomErasing(), dp.RandomContrast())).parameters(SIZES, draw)
    assert asked == [(1, 2), (2, 22), (3, 2), (4, 23), (5, 1)]


@pytest.mark.parametrize(
    ("ops", "places"),
    [
        ((dp.CenterCrop(30),), set()),
        ((dp.CenterCrop(31),), {0}),  # one image is 30 high
        ((dp.RandomCrop((30, 65)), dp.Normalize()), {0}),  # one is 64 wide
        ((dp.ResizeShorter(40), dp.CenterCrop(40)), set()),
        ((dp.ResizeShorter(40), dp.RandomFlip(), dp.CenterCrop(41)), {2}),
        ((dp.RandomResizedCrop(500),), set()),  # always resizes
        ((dp.CenterCrop(500), dp.CenterCrop(20), dp.RandomCrop(21)), {0, 2}),
        ((dp.Pad(1), dp.CenterCrop(32)), set()),
        ((dp.Pad(1), dp.RandomErasing(), dp.RandomHue(), dp.CenterCrop(33)), {3}),
    ],
)
def test_undersized(ops: tuple[dp.Op, ...], places: set[int]) -> None:
    assert dp.Recipe(ops).undersized(SIZES) == places
