"""Every op's docstring in plain numpy, float64: what the engines are held against."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import dali_pipe as dp
from dali_pipe import batch_ops, color_ops, ops, reader
from dali_pipe.plan import FIRST_PARAMETER, LABEL, Plan
from dali_pipe.records import Records

Image = np.ndarray
_DCT = {"accurate": "INTEGER_ACCURATE", "fast": "INTEGER_FAST"}


def epoch(plan: Plan, number: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a whole epoch, in order."""
    order = plan.order(number)
    tickets = plan.tickets(number, order, batch_size)
    images = np.stack([image(plan.recipe, pixels, t) for pixels, t in zip(decode(plan, order), tickets, strict=True)])
    labels = np.asarray(tickets[:, LABEL])
    if plan.recipe.label is not None:
        one_hot = plan.recipe.label
        labels = np.where(np.arange(one_hot.classes) == labels[:, None], one_hot.on, one_hot.off)
    if plan.recipe.mix is not None:
        lanes = tickets[:, FIRST_PARAMETER + plan.recipe.lanes :]
        images, labels = mix(plan.recipe.mix, images, labels, lanes, batch_size)
    return finish(plan.recipe, images), labels


def decode(plan: Plan, order: np.ndarray) -> list[Image]:
    """Whole images by TensorFlow's decoder, turned upright by Pillow's rule where the recipe asks."""
    images = []
    for place, data in zip(order, reader.read_images(plan.records, order), strict=True):
        pixels = tf.io.decode_jpeg(bytes(data), channels=3, dct_method=_DCT[plan.recipe.dct]).numpy()
        images.append(upright(pixels, plan.records, place) if plan.recipe.exif else pixels)
    return images


def upright(pixels: Image, records: Records, place: int) -> Image:
    """As PIL.ImageOps.exif_transpose turns it."""
    from PIL import Image as Pillow

    turns = {
        2: Pillow.Transpose.FLIP_LEFT_RIGHT,
        3: Pillow.Transpose.ROTATE_180,
        4: Pillow.Transpose.FLIP_TOP_BOTTOM,
        5: Pillow.Transpose.TRANSPOSE,
        6: Pillow.Transpose.ROTATE_270,
        7: Pillow.Transpose.TRANSVERSE,
        8: Pillow.Transpose.ROTATE_90,
    }
    turn = turns.get(int(records.table["orientation"][place]))
    return pixels if turn is None else np.asarray(Pillow.fromarray(pixels).transpose(turn))


def grey_levels(x: np.ndarray) -> Image:
    """Rounded, halves up, and clipped to uint8."""
    return np.clip(np.floor(x + 0.5), 0, 255).astype(np.uint8)


def linear(x: Image, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Values at `rows` and `columns` (broadcast), between pixel centres; the edge's value beyond it."""
    low = [np.floor(c).astype(int) for c in (rows, columns)]
    (fy, fx) = (c - n for c, n in zip((rows, columns), low, strict=True))
    (y0, x0), (y1, x1) = low, [n + 1 for n in low]
    y0, y1 = (np.clip(y, 0, x.shape[0] - 1) for y in (y0, y1))
    x0, x1 = (np.clip(c, 0, x.shape[1] - 1) for c in (x0, x1))
    pixels = x.astype(np.float64)
    fy, fx = fy[..., None], fx[..., None]
    top = pixels[y0, x0] * (1 - fx) + pixels[y0, x1] * fx
    bottom = pixels[y1, x0] * (1 - fx) + pixels[y1, x1] * fx
    return np.asarray(top * (1 - fy) + bottom * fy)


def resized(x: Image, height: int, width: int) -> np.ndarray:
    """Linear, no antialias: output pixel centres mapped into the input. Not rounded."""
    rows = (np.arange(height) + 0.5) * x.shape[0] / height - 0.5
    columns = (np.arange(width) + 0.5) * x.shape[1] / width - 0.5
    return linear(x, *np.broadcast_arrays(rows[:, None], columns[None, :]))


def resize(x: Image, height: int, width: int) -> Image:
    """The same in whole grey levels."""
    return grey_levels(resized(x, height, width))


def _crop(x: Image, op: ops.Op, t: np.ndarray) -> Image:
    assert isinstance(op, ops.Crop)
    top, left, height, width = t
    window = x[top : top + height, left : left + width]
    return window if window.shape[:2] == op.shape else resize(window, *op.shape)


def _resize(x: Image, op: ops.Op, t: np.ndarray) -> Image:
    assert isinstance(op, ops.Resize)
    return resize(x, *op.shape)


def _flip(x: Image, op: ops.Op, t: np.ndarray) -> Image:
    x = x[:, ::-1] if t[0] else x
    return x[::-1] if t[1] else x


def _pad(x: Image, op: ops.Op, t: np.ndarray) -> Image:
    assert isinstance(op, ops.Pad)
    return np.pad(x, (*op.borders, (0, 0)), constant_values=op.fill)


def _rotate(x: Image, op: ops.Op, t: np.ndarray) -> Image:
    """The docstring's map, over an image set in a wide border of `fill`."""
    assert isinstance(op, ops.RandomRotation)
    matrix = t.view(np.float64).reshape(2, 3)
    rows, columns = np.mgrid[0 : x.shape[0], 0 : x.shape[1]] + 0.5
    source = np.einsum("ij,jhw->ihw", matrix[:, :2], np.stack([columns, rows])) + matrix[:, 2, None, None] - 0.5
    border = max(x.shape)
    framed = np.pad(x, ((border, border), (border, border), (0, 0)), constant_values=op.fill)
    return grey_levels(linear(framed, source[1] + border, source[0] + border))


def _erase(x: Image, op: ops.Op, t: np.ndarray) -> Image:
    assert isinstance(op, ops.RandomErasing)
    x = x.copy()
    x[t[0] : t[0] + t[2], t[1] : t[1] + t[3]] = op.fill
    return x


def _contrast(x: Image, op: ops.Op, t: np.ndarray) -> Image:
    mean = x.astype(np.float64).mean((0, 1))
    return grey_levels((x - mean) * t.view(np.float64) + mean)


def _color(x: Image, op: ops.Op, t: np.ndarray) -> Image:
    return grey_levels(x @ t.view(np.float64).reshape(3, 3).T)


_OPS: dict[type[ops.Op], Callable[[Image, ops.Op, np.ndarray], Image]] = {
    ops.RandomCrop: _crop,
    ops.CenterCrop: _crop,
    ops.RandomResizedCrop: _crop,
    ops.Resize: _resize,
    ops.ResizeShorter: lambda x, op, t: resize(x, *t),
    ops.RandomFlip: _flip,
    ops.Pad: _pad,
    ops.RandomRotation: _rotate,
    ops.RandomErasing: _erase,
    color_ops.RandomBrightness: lambda x, op, t: np.clip(x.astype(int) + t[0], 0, 255).astype(np.uint8),
    color_ops.RandomContrast: _contrast,
    color_ops.RandomSaturation: _color,
    color_ops.RandomHue: _color,
    color_ops.Grayscale: _color,
}


def image(recipe: dp.Recipe, pixels: Image, ticket: np.ndarray) -> Image:
    """All ops but `Normalize`."""
    at = FIRST_PARAMETER
    for op in recipe.steps:
        pixels = _OPS[type(op)](pixels, op, np.ascontiguousarray(ticket[at : at + op.lanes]))
        at += op.lanes
    return pixels


def mix(
    op: batch_ops.Mix, images: np.ndarray, labels: np.ndarray, lanes: np.ndarray, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    first = np.arange(len(images)) // batch_size * batch_size
    partner = first + lanes[:, 0]
    ratio = np.ascontiguousarray(lanes[:, -1]).view(np.float64)
    labels = ratio[:, None] * labels + (1 - ratio[:, None]) * labels[partner]
    if isinstance(op, batch_ops.MixUp):
        r = ratio[:, None, None, None]
        return grey_levels(r * images + (1 - r) * images[partner]), labels
    mixed = images.copy()
    for place, (y, x, height, width) in enumerate(lanes[:, 1:5]):
        mixed[place, y : y + height, x : x + width] = images[partner[place], y : y + height, x : x + width]
    return mixed, labels


def finish(recipe: dp.Recipe, images: np.ndarray) -> np.ndarray:
    """Normalise in float32, as `Normalize` says, and cast."""
    if recipe.normalize is not None and recipe.dtype != "uint8":
        mean, std = (np.array(v, np.float32) for v in (recipe.normalize.mean, recipe.normalize.std))
        images = (images.astype(np.float32) - mean) * (np.float32(1) / std)
    return images.astype(recipe.dtype)
