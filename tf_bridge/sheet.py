"""Pictures of pixels and words: what the contact sheets of `dali-tf` are put together with."""

import math
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from dali_pipe.recipe import Recipe

MARGIN = 24
PAPER, INK, FAINT, FRAME = (250, 250, 248), (32, 33, 36), (112, 116, 122), (226, 227, 226)
GOOD, BAD, MARK = (24, 128, 56), (197, 34, 31), (255, 196, 0)

Pixels = NDArray[np.uint8]
Color = tuple[int, int, int]


class Box(NamedTuple):
    """A place on a sheet, in pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def right(self) -> int:
        """First column beyond."""
        return self.left + self.width

    @property
    def bottom(self) -> int:
        """First row beyond."""
        return self.top + self.height


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, so that every machine draws the same."""
    return ImageFont.load_default(size)


def grey_levels(images: NDArray[Any], recipe: Recipe) -> NDArray[np.float32]:
    """A recipe's images in units of 0-255, not rounded: its normalisation undone where the pipeline did it."""
    images = images.astype(np.float32)
    if recipe.dtype == "uint8" or recipe.normalize is None:
        return images
    std, mean = (np.array(values, np.float32) for values in (recipe.normalize.std, recipe.normalize.mean))
    levels: NDArray[np.float32] = images * std + mean
    return levels


def to_pixels(levels: NDArray[Any]) -> Pixels:
    """Whole grey levels in 0-255; what is no number is black."""
    pixels: Pixels = np.clip(np.floor(np.nan_to_num(levels) + 0.5), 0, 255).astype(np.uint8)
    return pixels


def tile_size(height: int, width: int, smallest: int, largest: int) -> tuple[int, int]:
    """Height and width at which images of one size are drawn: their own, unless that is tiny or huge.

    Tiny images are enlarged a whole number of times, so that each pixel becomes a square.
    """
    longer = max(height, width)
    scale = math.ceil(smallest / longer) if longer < smallest else min(1.0, largest / longer)
    return max(1, round(height * scale)), max(1, round(width * scale))


class Sheet:
    """A page that images and words are put on."""

    def __init__(self, width: int, height: int):
        self.image = Image.new("RGB", (width, height), PAPER)
        self._draw = ImageDraw.Draw(self.image)

    def tile(self, box: Box, pixels: Pixels) -> None:
        """Fill the box with an image; pixel for pixel if it has the box's size."""
        image = Image.fromarray(pixels)
        if image.size != (box.width, box.height):
            larger = box.width > image.width
            method = Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS
            image = image.resize((box.width, box.height), method)
        self.image.paste(image, (box.left, box.top))

    def letterbox(self, box: Box, pixels: Pixels) -> Box:
        """Put a whole image into the middle of the box; returns where it is."""
        self._draw.rectangle((box.left, box.top, box.right - 1, box.bottom - 1), FRAME)
        height, width = pixels.shape[:2]
        scale = min(box.height / height, box.width / width)
        h, w = max(1, round(height * scale)), max(1, round(width * scale))
        inner = Box(box.left + (box.width - w) // 2, box.top + (box.height - h) // 2, w, h)
        image = Image.fromarray(pixels).resize((w, h), Image.Resampling.LANCZOS)
        self.image.paste(image, (inner.left, inner.top))
        return inner

    def outline(self, box: Box) -> None:
        """Frame the box, around its pixels, in a colour that shows on light and on dark."""
        for out, color in ((4, INK), (3, MARK), (2, MARK), (1, INK)):
            corners = (box.left - out, box.top - out, box.right - 1 + out, box.bottom - 1 + out)
            self._draw.rectangle(corners, outline=color)

    def text(self, left: int, top: int, words: str, size: int, color: Color = INK, width: int | None = None) -> int:
        """Write one line, shortened to `width`; returns how wide it is."""
        words = drawable(words) if width is None else shortened(drawable(words), size, width)
        self._draw.text((left, top), words, color, font(size))
        return math.ceil(font(size).getlength(words))

    def text_right(self, right: int, top: int, words: str, size: int, color: Color = INK) -> int:
        """Write one line that ends at `right`; returns how wide it is."""
        words = drawable(words)
        self._draw.text((right, top), words, color, font(size), anchor="ra")
        return math.ceil(font(size).getlength(words))

    def save(self, path: Path) -> None:
        """Write a PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.image.save(path, "PNG")


def drawable(words: str) -> str:
    """The words in letters that the font has: ASCII, without accents; `?` for what has no such form."""
    plain = unicodedata.normalize("NFKD", words.replace("×", "x"))
    return "".join("?" if ord(c) > 126 and c != "·" else c for c in plain if not unicodedata.combining(c))


def shortened(words: str, size: int, width: int) -> str:
    """The words, or as many of their letters as fit, and an ellipsis."""
    if font(size).getlength(words) <= width:
        return words
    while words and font(size).getlength(words + "…") > width:
        words = words[:-1]
    return words.rstrip() + "…" if words else ""
