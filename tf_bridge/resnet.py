"""ResNet-18 as in He et al., "Deep Residual Learning for Image Recognition" (2015), table 1, with projections (B)."""

from typing import Any

import keras
from keras import layers

from dali_pipe.recipe import Recipe
from tf_bridge.keras_layers import Preprocess

STAGES = (2, 2, 2, 2)  # basic blocks at each resolution
CHANNEL_BLOCK = 16


def resnet18(classes: int, *, recipe: Recipe, width: int = 64) -> keras.Model:
    """A model for a recipe's images: logits over `classes`, float32 `(B, classes)`.

    A uint8 recipe gives a model that takes uint8 images and normalises them first; else it takes the recipe's
    normalised floats. At full width and 1,000 classes it has 11,689,512 trainable parameters.

    Args:
        classes: how many.
        recipe: of the data set; sets the input's shape and dtype.
        width: channels of the first stage, doubled at each of the next three; a multiple of 16. The paper's is 64.

    Raises:
        ValueError: the width is not a multiple of 16. TensorFlow 2.21's oneDNN convolutions corrupt the heap with fewer
            channels (seen at 224 px with 2, 4 and 8), and the process dies at some later allocation.
    """
    if width < CHANNEL_BLOCK or width % CHANNEL_BLOCK:
        raise ValueError(f"`width` must be a multiple of {CHANNEL_BLOCK}. Received: width={width!r}")
    images = keras.Input(recipe.output_shape, dtype=recipe.dtype, name="image")
    x = Preprocess(recipe, name="preprocess")(images) if recipe.dtype == "uint8" else images
    x = _convolution(x, width, 7, 2, "stem")
    x = layers.ReLU(name="stem_relu")(x)
    x = layers.ZeroPadding2D(1, name="stem_pool_pad")(x)  # after a ReLU, zeros never win the maximum
    x = layers.MaxPooling2D(3, 2, name="stem_pool")(x)
    for stage, blocks in enumerate(STAGES):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = _basic_block(x, width << stage, stride, f"stage{stage + 1}_block{block + 1}")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    logits = layers.Dense(classes, dtype="float32", name="logits")(x)
    return keras.Model(images, logits, name="resnet18")


def _convolution(x: Any, channels: int, size: int, stride: int, name: str) -> Any:
    """Convolution and batch normalisation, padded alike on all sides; "same" would pad only below and right."""
    if size > 1:
        x = layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(x)
    x = layers.Conv2D(
        channels, size, stride, use_bias=False, kernel_initializer="he_normal", name=f"{name}_convolution"
    )(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)


def _basic_block(x: Any, channels: int, stride: int, name: str) -> Any:
    shortcut = x
    if stride > 1 or x.shape[-1] != channels:
        shortcut = _convolution(x, channels, 1, stride, f"{name}_projection")
    x = _convolution(x, channels, 3, stride, f"{name}_a")
    x = layers.ReLU(name=f"{name}_a_relu")(x)
    x = _convolution(x, channels, 3, 1, f"{name}_b")
    return layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_add")([x, shortcut]))
