"""The picture of a comparison: what each engine made of the images on which it is furthest from the reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipe.records import Records
from tf_bridge import cli_data, parity, sheet
from tf_bridge.parity import Pair, Row
from tf_bridge.sheet import MARGIN, Box, Pixels, Sheet

SMALLEST, LARGEST = 120, 160  # pixels of a tile's longer side
_GAP, _HEADING, _CAPTION, _TITLE = 6, 34, 56, 72


class Layout:
    """Where things are: a section for each row, in it a heading and three tiles for each of its images."""

    def __init__(self, rows: Sequence[Row]):
        self._tiles = [sheet.tile_size(*row.recipe.output_shape[:2], SMALLEST, LARGEST) for row in rows]
        self._triple = 3 * max(width for _, width in self._tiles) + 2 * _GAP + MARGIN
        heights = [_HEADING + height + _CAPTION for height, _ in self._tiles]
        self.tops = [_TITLE + sum(heights[:place]) for place in range(len(rows))]
        self.room = max(len(row.worst) for row in rows) * self._triple - MARGIN
        self.size = self.room + 2 * MARGIN, _TITLE + sum(heights) + MARGIN // 4

    def triple(self, place: int, image: int) -> tuple[Box, Box, Box]:
        """The tiles of one image of the row at a place: reference, engine, difference."""
        height, width = self._tiles[place]
        left, top = MARGIN + image * self._triple, self.tops[place] + _HEADING
        first, second, third = (Box(left + k * (width + _GAP), top, width, height) for k in range(3))
        return first, second, third


def draw(rows: Sequence[Row], records: Records, title: str, details: str) -> Sheet:
    """The picture; `records` gives the classes their names."""
    plan = Layout(rows)
    page = Sheet(*plan.size)
    page.text(MARGIN, 14, title, 20, width=plan.room)
    page.text(MARGIN, 42, details, 13, sheet.FAINT, width=plan.room)
    for place, row in enumerate(rows):
        _heading(page, plan.tops[place], plan.room, row)
        for k, pair in enumerate(row.worst):
            _triple(page, plan.triple(place, k), pair, row, cli_data.label_name(records, pair.label))
    return page


def _heading(page: Sheet, top: int, room: int, row: Row) -> None:
    verdict, color = ("ok", sheet.GOOD) if row.ok else ("FAIL", sheet.BAD)
    numbers = f"largest {row.largest:.3g}, bound {row.bound:.3g}, {percent(row.differing)} differ"
    if not row.labels_equal:
        numbers += ", labels differ"
    right = MARGIN + room
    right -= page.text_right(right, top + 5, verdict, 16, color) + 12
    right -= page.text_right(right, top + 7, numbers, 13, sheet.FAINT) + 12
    page.text(MARGIN, top + 5, f"{row.layer}: {row.engine}", 16, width=right - MARGIN)


def _triple(page: Sheet, boxes: tuple[Box, Box, Box], pair: Pair, row: Row, label: str) -> None:
    images = [sheet.grey_levels(image, row.recipe) for image in (pair.reference, pair.image)]
    shown, factor = amplified(*images)
    captions = [str(parity.REFERENCE), str(row.engine), f"difference x{factor}" if pair.largest else "identical"]
    for box, pixels, words in zip(boxes, [*map(sheet.to_pixels, images), shown], captions, strict=True):
        page.tile(box, pixels)
        page.text(box.left, box.bottom + 3, words, 12, sheet.FAINT, width=box.width)
    left, right, bottom = boxes[0].left, boxes[-1].right, boxes[0].bottom
    used = page.text_right(right, bottom + 19, f"#{pair.id}", 12, sheet.FAINT)
    page.text(left, bottom + 18, label, 13, width=right - left - used - 12)


def amplified(reference: NDArray[Any], image: NDArray[Any]) -> tuple[Pixels, int]:
    """The largest difference of each pixel's channels, grey levels times a whole number that makes the largest white.

    Less than one grey level stays dark: it is how floats round.
    """
    difference = np.nan_to_num(np.abs(reference - image), nan=255.0, posinf=255.0).max(-1)
    factor = max(1, round(255 / max(1.0, float(difference.max()))))
    return np.repeat(sheet.to_pixels(difference * factor)[..., None], 3, axis=-1), factor


def percent(share: float) -> str:
    """Three digits that count, so that one value in a million does not read as none."""
    return f"{100 * share:.3g} %"
