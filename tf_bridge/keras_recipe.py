"""The Keras preprocessing layers people already have, as a recipe."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import ArrayLike

from dali_pipe import color_ops, ops
from dali_pipe.geometry import Floats
from dali_pipe.ops import Op, Size
from dali_pipe.recipe import DType, Recipe

Layers = Any  # a layer, a Sequential, or a list or tuple of these; Keras comes without types


class _Met(NamedTuple):
    """What a layer meets: `scale · x + offset`, by channel, of grey levels `x` in 0-255, in images of `size`."""

    scale: Floats = np.ones(3)
    offset: Floats = np.zeros(3)
    size: Size = (None, None)

    def rescaled(self, scale: ArrayLike, offset: ArrayLike) -> "_Met":
        """After one more affine layer."""
        by, plus = _channels("scale", scale), _channels("offset", offset)
        if not ((by > 0) & np.isfinite(by) & np.isfinite(plus)).all():
            raise ValueError(
                "its scale must be positive, as the std of `Normalize` is, and its numbers finite. "
                f"Received: scale={by.tolist()}, offset={plus.tolist()}"
            )
        return self._replace(scale=self.scale * by, offset=self.offset * by + plus)

    def level(self, value: float) -> int:
        """The grey level that is `value` here, for all channels."""
        levels = (value - self.offset) / self.scale
        level = round(float(levels[0]))
        if not 0 <= level <= 255 or not np.allclose(levels, level, rtol=0, atol=1e-3):
            raise ValueError(
                "what it fills with must be one whole grey level, 0-255, of the image as decoded. "
                f"Received: {value!r}, which is {levels.tolist()} by channel"
            )
        return level

    def check_range(self, value_range: ArrayLike) -> None:
        """Ops clip at 0 and 255 of the decoded image: the layer must clip at what these have become."""
        bounds = np.stack([self.offset, self.offset + 255 * self.scale])
        span = bounds[1] - bounds[0]
        if not np.all(np.abs(bounds - np.reshape(value_range, (2, 1))) <= 1e-6 * span):
            low, high = bounds.round(6).tolist()
            raise ValueError(
                f"`value_range` must be what 0 and 255 are where it stands, {low} and {high} by channel. "
                f"Received: value_range={value_range!r}"
            )


def _channels(name: str, value: ArrayLike) -> Floats:
    """One number, or one for each channel along the last axis, as three."""
    array = np.asarray(value, np.float64)
    if array.size != 1 and (array.size != 3 or array.shape[-1] != 3):
        raise ValueError(f"its {name} must be a number, or one for each of 3 channels. Received: shape {array.shape}")
    return np.broadcast_to(array.reshape(-1), 3)


def _require(layer: Any, name: str, wanted: object, hint: str = "") -> None:
    value = getattr(layer, name)
    if value != wanted:
        raise ValueError(f"`{name}` must be {wanted!r}{hint}. Received: {name}={value!r}")


def _random_crop(layer: Any, met: _Met) -> Op:
    crop = (layer.height, layer.width)
    known = [(side, size) for side, size in zip(met.size, crop, strict=True) if side is not None]
    if any(side < size for side, size in known):
        raise ValueError(
            "images before it must not be smaller, as Keras stretches a part of these: resize them to the crop or "
            f"more. Received: images of {met.size}, a crop of {crop}"
        )
    # Keras draws a place only where both sides are larger; else it cuts at the centre.
    return ops.CenterCrop(crop) if any(side == size for side, size in known) else ops.RandomCrop(crop)


def _center_crop(layer: Any, met: _Met) -> Op:
    return ops.CenterCrop((layer.height, layer.width))


def _resizing(layer: Any, met: _Met) -> Op:
    _require(layer, "interpolation", "bilinear")
    _require(layer, "crop_to_aspect_ratio", False, ": in a Recipe, `ResizeShorter` and `CenterCrop` do the like")
    _require(layer, "pad_to_aspect_ratio", False)
    return ops.Resize((layer.height, layer.width), antialias=layer.antialias)


def _random_flip(layer: Any, met: _Met) -> Op:
    flips = {
        "horizontal": ops.RandomFlip(0.5, 0.0),
        "vertical": ops.RandomFlip(0.0, 0.5),
        "horizontal_and_vertical": ops.RandomFlip(0.5, 0.5, joint=True),  # Keras draws once for both
    }
    if layer.mode not in flips:  # Keras takes any, and flips nothing then
        raise ValueError(f"`mode` must be one of {', '.join(map(repr, flips))}. Received: mode={layer.mode!r}")
    return flips[layer.mode]


def _zero_padding(layer: Any, met: _Met) -> Op:
    return ops.Pad(layer.padding, met.level(0.0))


def _random_rotation(layer: Any, met: _Met) -> Op:
    _require(layer, "fill_mode", "constant", ", as no op mirrors or repeats what lies at the edge")
    _require(layer, "interpolation", "bilinear")
    lower, upper = layer.factor
    return ops.RandomRotation(360.0 * lower, 360.0 * upper, met.level(layer.fill_value))


def _random_brightness(layer: Any, met: _Met) -> Op:
    met.check_range(layer.value_range)
    return color_ops.RandomBrightness(*layer.factor)


def _random_contrast(layer: Any, met: _Met) -> Op:
    met.check_range(layer.value_range)
    lower, upper = layer.factor
    return color_ops.RandomContrast(1.0 - lower, 1.0 + upper)


def _random_color_degeneration(layer: Any, met: _Met) -> Op:
    met.check_range(layer.value_range)
    lower, upper = layer.factor
    return color_ops.RandomSaturation(1.0 - upper, 1.0 - lower)


def _random_grayscale(layer: Any, met: _Met) -> Op:
    _require(layer, "factor", 1.0, ", which makes all images grey")
    if np.ptp(met.scale) or np.ptp(met.offset):
        raise ValueError("layers before it must scale all channels alike: put it before them")
    return color_ops.Grayscale()


def _rescaling(layer: Any) -> tuple[ArrayLike, ArrayLike]:
    return layer.scale, layer.offset


def _normalization(layer: Any) -> tuple[ArrayLike, ArrayLike]:
    if layer.axis not in ((), (-1,), (3,)):
        raise ValueError(f"`axis` must be -1 or None. Received: axis={layer.axis!r}")
    mean, variance = _statistics(layer)
    std = np.maximum(np.sqrt(variance), keras.config.epsilon())
    return (std, mean) if layer.invert else (1.0 / std, -mean / std)


def _statistics(layer: Any) -> tuple[Floats, Floats]:
    """Mean and variance, `()` or `(3,)`."""
    if layer.input_mean is not None:
        return np.asarray(layer.input_mean, np.float64), np.asarray(layer.input_variance, np.float64)
    weights = (layer.adapt_mean, layer.adapt_variance) if layer.built else (np.zeros(3), np.ones(3))
    mean, variance = (np.asarray(keras.ops.convert_to_numpy(w), np.float64) for w in weights)
    if np.all(mean == 0) and np.all(variance == 1):  # what they begin with; no images have these
        raise ValueError("it must have statistics: call its `adapt`, or give it `mean` and `variance`")
    return mean, variance


_AFFINE: dict[str, Callable[[Any], tuple[ArrayLike, ArrayLike]]] = {
    "Normalization": _normalization,
    "Rescaling": _rescaling,
}

_OPS: dict[str, Callable[[Any, _Met], Op]] = {
    "CenterCrop": _center_crop,
    "RandomBrightness": _random_brightness,
    "RandomColorDegeneration": _random_color_degeneration,
    "RandomContrast": _random_contrast,
    "RandomCrop": _random_crop,
    "RandomFlip": _random_flip,
    "RandomGrayscale": _random_grayscale,
    "RandomRotation": _random_rotation,
    "Resizing": _resizing,
    "ZeroPadding2D": _zero_padding,
}

_NAMESAKES = {
    "CutMix": "it draws partner and rectangle for each image, `dali_pipe.CutMix` once a batch. `mix=CutMix()` takes "
    "the latter; for the former, use it as a layer on images and labels",
    "MixUp": "it draws partner and weight for each image, `dali_pipe.MixUp` once a batch. `mix=MixUp()` takes the "
    "latter; for the former, use it as a layer on images and labels",
    "RandomErasing": "it draws height and width by another law than `dali_pipe.RandomErasing`, which is torchvision's",
    "RandomHue": "it turns HSV's hue, `dali_pipe.RandomHue` turns YIQ's: other functions",
    "RandomSaturation": "it scales HSV's saturation, `dali_pipe.RandomSaturation` blends with grey, which is "
    "keras.layers.RandomColorDegeneration: other functions",
}


def _keras_name(layer: Any) -> str:
    """Of Keras's own layers; a subclass may do anything, and so may another library's namesake."""
    name = type(layer).__name__
    return name if getattr(keras.layers, name, None) is type(layer) else ""


def _flat(layers: Layers) -> Iterator[Any]:
    """Single layers in order, without `InputLayer`."""
    if isinstance(layers, list | tuple):
        for part in layers:
            yield from _flat(part)
    elif type(layers) in (keras.Sequential, keras.layers.Pipeline):
        yield from _flat(list(layers.layers))
    elif not isinstance(layers, keras.layers.Layer):
        raise TypeError(f"`layers` must be Keras layers, or a keras.Sequential of them. Received: {layers!r}")
    elif not isinstance(layers, keras.layers.InputLayer):
        yield layers


def _check(layer: Any) -> None:
    """What is the same for all layers."""
    name = _keras_name(layer)
    if name in _NAMESAKES:
        raise ValueError(_NAMESAKES[name])
    if name not in _AFFINE and name not in _OPS:
        raise ValueError(f"it must be one of {', '.join(sorted([*_AFFINE, *_OPS]))}, and no subclass")
    if "float" not in layer.compute_dtype:
        raise ValueError(f"`dtype` must be a float, as whole numbers wrap round. Received: {layer.compute_dtype!r}")
    data_format = getattr(layer, "data_format", keras.config.image_data_format())
    if data_format != "channels_last":
        raise ValueError(f'`data_format` must be "channels_last". Received: data_format={data_format!r}')


def _convert(layer: Any, met: _Met) -> tuple[Op | None, _Met]:
    """The layer's op, none if it is affine, and what the next one meets."""
    try:
        _check(layer)
        if affine := _AFFINE.get(_keras_name(layer)):
            return None, met.rescaled(*affine(layer))
        op = _OPS[_keras_name(layer)](layer, met)
    except ValueError as error:
        raise ValueError(
            f"{type(layer).__name__} {layer.name!r} cannot go into a recipe: {error}. If it must stay as it is, keep "
            "it in the model, and what follows it"
        ) from error
    return op, met._replace(size=op.output(met.size))


def from_keras(layers: Layers, *, dtype: DType = "float32", **recipe_options: Any) -> Recipe:
    """The recipe that does what Keras preprocessing layers do in training, or an error that names the layer.

    Each layer draws for each image, as in `dataset.map(layers)` before batching; draws follow the data set's seed, not
    the layers'. Images are uint8 between ops, so a layer that computes is exact but for rounding,
    half a grey level:

    - `CenterCrop`, `RandomFlip`, `ZeroPadding2D`: the same pixels; an image smaller than the `CenterCrop` is resized,
      as in Keras. `RandomFlip()`, of both directions, turns an image by 180 degrees or not at all, as Keras draws once.
    - `RandomCrop`: a window by the same law where the image is larger than the crop on both sides. Where a side is
      equal, Keras cuts at the centre; of an image that is smaller it stretches a part. The op `RandomCrop` draws, and
      resizes the largest centred window of the crop's aspect.
    - `Resizing`, bilinear; with `antialias` DALI is up to 8 grey levels off.
    - `RandomBrightness`, `RandomContrast`, `RandomRotation` with `fill_mode="constant"`.
    - `RandomColorDegeneration` (it is the op `RandomSaturation`), `RandomGrayscale(1.0)`: 0.03 beyond the rounding,
      as Keras takes 0.2989 for the weight of red.
    - `Rescaling` and `Normalization`, with given or adapted statistics: one final `Normalize`, in float32.

    Layers may follow `Rescaling` or `Normalization`: the recipe has the affine part last. For crops, flips and resizes
    that is the same function. Padding and rotation need a fill that is one whole grey level of the decoded image, and
    colour layers a `value_range` that is what 0-255 has become, such as (0, 1) after `Rescaling(1/255)`.

    Args:
        layers: a layer, a list or tuple of them, or a `keras.Sequential`; `InputLayer` is skipped. Images are RGB.
        dtype: of the images handed out; "uint8" leaves the affine part to `tf_bridge.Preprocess(recipe)`.
        **recipe_options: `dct`, `exif`, `label`, `mix` of `dali_pipe.Recipe`.

    Raises:
        ValueError: a layer, or an option of it, has no equal among the ops; or the image size would vary.
        TypeError: something is not a Keras layer.
    """
    met, steps, flat = _Met(), list[Op](), list(_flat(layers))
    if not flat:
        raise ValueError(f"`layers` must hold at least one layer. Received: layers={layers!r}")
    for layer in flat:
        op, met = _convert(layer, met)
        steps += [op] if op else []
    if any(_keras_name(layer) in _AFFINE for layer in flat):
        mean, std = 0.0 - met.offset / met.scale, 1.0 / met.scale
        steps.append(ops.Normalize(tuple(mean.tolist()), tuple(std.tolist())))
    return Recipe(tuple(steps), dtype, **recipe_options)
