"""The part of a recipe that lives in the model."""

from typing import Any

import keras
import numpy as np

from dali_pipe.ops import Normalize
from dali_pipe.recipe import Recipe


@keras.saving.register_keras_serializable("dali_tf_bridge")
class Preprocess(keras.layers.Layer):
    """Does a uint8 recipe's tail, its `Normalize`, on the accelerator: `(x − mean) · (1 / std)`.

    Takes uint8 images `(B, H, W, 3)`, gives the same shape in the layer's compute dtype (float32, or the 16-bit type of
    a mixed precision policy; the arithmetic is float32). It is saved with the model, so that what is served is what
    was trained. Keras finds it when such a model is loaded if `tf_bridge` was imported after Keras, or `Preprocess`
    from it.

    Args:
        recipe: the recipe of the data set; with none, or a recipe without a tail, images are only cast.
        mean: instead of a recipe, of each channel in units of 0-255.
        std: likewise.
        **options: as `keras.layers.Layer`.
    """

    def __init__(
        self,
        recipe: Recipe | None = None,
        *,
        mean: tuple[float, ...] = (0.0, 0.0, 0.0),
        std: tuple[float, ...] = (1.0, 1.0, 1.0),
        **options: Any,
    ):
        super().__init__(**options)
        for op in recipe.tail if recipe is not None else ():
            assert isinstance(op, Normalize)
            mean, std = op.mean, op.std
        self.mean, self.std = tuple(mean), tuple(std)

    def call(self, images: Any) -> Any:
        """Normalised images in the compute dtype."""
        mean, scale = np.array(self.mean, np.float32), 1 / np.array(self.std, np.float32)  # as the engines have them
        return keras.ops.cast((keras.ops.cast(images, "float32") - mean) * scale, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """What rebuilds the layer."""
        return {**super().get_config(), "mean": self.mean, "std": self.std}
