"""The values of a model's variables: taken, and put back into a model made the same way."""

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

Values = list[NDArray[Any]]


def take(model: keras.Model) -> dict[str, Values]:
    """The values of all variables: "model" (random layers' states too), "optimizer" and "metrics"."""
    return {name: [np.asarray(v) for v in variables] for name, variables in _variables(model).items()}


def _variables(model: keras.Model) -> dict[str, Sequence[Any]]:
    return {
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }


def build(model: keras.Model, batch: tuple[Any, Any]) -> None:
    """Let a compiled model, its optimizer and its metrics have their variables.

    Args:
        model: the model.
        batch: images and labels to call it on.

    Raises:
        ValueError: it is not compiled, or cannot be called on images.
    """
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"The model must be compiled before it is restored: model.compile(...). Received: {model!r}")
    images, labels = batch
    try:
        predicted = model(images, training=False)
    except Exception as error:  # whatever the model's own code raises
        if not model.built:
            raise ValueError(
                f"The model must be built before it is restored: call it on a batch. It cannot be called here: {error}"
            ) from error
    else:
        _build_metrics(model, images, labels, predicted)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _build_metrics(model: keras.Model, images: Any, labels: Any, predicted: Any) -> None:
    """Keras does so when it traces its training step, which is too late to give an epoch's metrics their beginning."""
    try:
        model.compute_metrics(images, labels, predicted)
        model.reset_metrics()
    except Exception as error:  # a `train_step` of its own may want other metrics: `assign_metrics` will say so
        log.debug("The metrics are not built beforehand: %s", error)


def assign(model: keras.Model, groups: dict[str, Values]) -> None:
    """Put "model" and "optimizer" back.

    Raises:
        ValueError: the model or its optimizer is another one; nothing has been assigned then.
    """
    variables = _variables(model)
    for name in ("model", "optimizer"):
        if fault := _misfit(variables[name], groups[name]):
            raise ValueError(
                f"The {name} must be made as it was for the saved run: {fault}. "
                f"Make it as it was then, or choose another folder."
            )
    for name in ("model", "optimizer"):
        _assign(variables[name], groups[name])


def assign_metrics(model: keras.Model, groups: dict[str, Values]) -> None:
    """Put "metrics" back, so that an epoch's metrics count its beginning; where they are others, say so."""
    variables = model.metrics_variables
    if fault := _misfit(variables, groups["metrics"]):
        log.warning("The metrics are not those of the saved run (%s): this epoch's count only what is left.", fault)
    else:
        _assign(variables, groups["metrics"])


def _misfit(variables: Sequence[Any], values: Values) -> str | None:
    """Why these values are not for these variables; names differ between runs, as Keras numbers its layers."""
    if len(variables) != len(values):
        return f"{len(values)} variables were saved. Received: {len(variables)} variables"
    for variable, value in zip(variables, values, strict=True):
        if tuple(variable.shape) != value.shape or variable.dtype != value.dtype.name:
            return (
                f"{variable.path} was saved as {value.dtype.name} {value.shape}. "
                f"Received: {variable.dtype} {tuple(variable.shape)}"
            )
    return None


def _assign(variables: Sequence[Any], values: Values) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
