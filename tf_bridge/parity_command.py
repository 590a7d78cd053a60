"""`dali-tf parity`: the comparison of `parity.py` as a table, as JSON and as a picture."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipe.records import Records
from tf_bridge import cli_data, parity, sheet
from tf_bridge.parity import Pair, Row
from tf_bridge.sheet import MARGIN, Box, Pixels, Sheet

WORST = 3  # images drawn for each row
SMALLEST, LARGEST = 120, 160  # pixels of a tile's longer side
_GAP, _HEADING, _CAPTION, _TITLE = 6, 34, 56, 72


def run(arguments: argparse.Namespace) -> int:
    """Compare, print and draw as the arguments say; returns the exit code."""
    recipe, _ = cli_data.recipes(arguments)
    everything, _ = cli_data.open_records(arguments)
    records = spread(everything, arguments.count)
    options = {"seed": arguments.seed, "epoch": arguments.epoch, "num_threads": arguments.threads}
    rows = parity.compare(records, recipe, keep=WORST, **options)
    title = f"{arguments.data or 'embedded data set'}, {arguments.recipe} {arguments.size}, {recipe.dtype}"
    details = (
        f"{len(records)} of {len(everything)} images, seed {arguments.seed}, epoch {arguments.epoch}; "
        f"the worst of each layer against {parity.REFERENCE}"
    )
    draw(rows, records, title, details).save(arguments.output)
    if arguments.json:
        print(json.dumps(report(rows, arguments), indent=2))
    else:
        print(f"Data:    {len(records)} of {len(everything)} images, seed {arguments.seed}, epoch {arguments.epoch}")
        print(f"Against: {parity.REFERENCE}\n\n{table(rows)}\n")
        print(f"Saved:   {arguments.output}, the images that differ most")
    return 0 if all(row.ok for row in rows) else 1


def spread(records: Records, count: int) -> Records:
    """`count` records at even distances: the files may be sorted by class."""
    if count >= len(records):
        return records
    return records.select(np.arange(count) * len(records) // count)


def report(rows: Sequence[Row], arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything the table says, for `json.dumps`."""
    return {
        "ok": all(row.ok for row in rows),
        "recipe": arguments.recipe,
        "size": arguments.size,
        "dtype": arguments.dtype,
        "seed": arguments.seed,
        "epoch": arguments.epoch,
        "reference": str(parity.REFERENCE),
        "picture": str(arguments.output),
        "rows": [
            {
                "layer": row.layer,
                "engine": str(row.engine),
                "images": row.images,
                "largest": row.largest,
                "mean": row.mean,
                "differing": row.differing,
                "labels_equal": row.labels_equal,
                "bound": row.bound,
                "ok": row.ok,
            }
            for row in rows
        ],
    }


def table(rows: Sequence[Row]) -> str:
    """The rows in columns."""
    cells = [["layer", "engine", "largest", "mean", "differ", "labels", "bound", ""]]
    for row in rows:
        labels, verdict = "equal" if row.labels_equal else "DIFFER", "ok" if row.ok else "FAIL"
        numbers = [f"{row.largest:.3g}", f"{row.mean:.2g}", percent(row.differing)]
        cells.append([row.layer, str(row.engine), *numbers, labels, f"{row.bound:.3g}", verdict])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_number = [False, False, True, True, True, False, True, False]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        )
        for line in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def percent(share: float) -> str:
    """Two digits that count, so that one value in a million does not read as none."""
    return f"{100 * share:.2g} %"


def draw(rows: Sequence[Row], records: Records, title: str, details: str) -> Sheet:
    """A section for each row: reference, engine and amplified difference of its worst images."""
    height, width = sheet.tile_size(*rows[-1].recipe.output_shape[:2], SMALLEST, LARGEST)
    section = _HEADING + height + _CAPTION
    triple = 3 * width + 2 * _GAP + MARGIN
    most = max(len(row.worst) for row in rows)
    page = Sheet(MARGIN + most * triple, _TITLE + len(rows) * section + MARGIN // 2)
    room = most * triple - MARGIN
    page.text(MARGIN, 14, title, 20, width=room)
    page.text(MARGIN, 42, details, 13, sheet.FAINT, width=room)
    for place, row in enumerate(rows):
        top = _TITLE + place * section
        _heading(page, top, room, row)
        for k, pair in enumerate(row.worst):
            box = Box(MARGIN + k * triple, top + _HEADING, width, height)
            _triple(page, box, pair, row, cli_data.label_name(records, pair.label))
    return page


def _heading(page: Sheet, top: int, room: int, row: Row) -> None:
    verdict, color = ("ok", sheet.GOOD) if row.ok else ("FAIL", sheet.BAD)
    right = MARGIN + room
    right -= page.text_right(right, top + 5, verdict, 16, color) + 12
    numbers = f"largest {row.largest:.3g}, bound {row.bound:.3g}, {percent(row.differing)} differ"
    if not row.labels_equal:
        numbers += ", labels differ"
    right -= page.text_right(right, top + 7, numbers, 13, sheet.FAINT) + 12
    page.text(MARGIN, top + 5, f"{row.layer}: {row.engine}", 16, width=right - MARGIN)


def _triple(page: Sheet, box: Box, pair: Pair, row: Row, label: str) -> None:
    images = [sheet.grey_levels(image, row.recipe) for image in (pair.reference, pair.image)]
    shown, factor = amplified(*images)
    boxes = [box._replace(left=box.left + k * (box.width + _GAP)) for k in range(3)]
    captions = [str(parity.REFERENCE), str(row.engine), f"difference x{factor}" if pair.largest else "identical"]
    for place, pixels, words in zip(boxes, [*map(sheet.to_pixels, images), shown], captions, strict=True):
        page.tile(place, pixels)
        page.text(place.left, place.bottom + 3, words, 12, sheet.FAINT, width=place.width)
    used = page.text_right(boxes[-1].right, box.bottom + 19, f"#{pair.id}", 12, sheet.FAINT)
    page.text(box.left, box.bottom + 18, label, 13, width=boxes[-1].right - box.left - used - 12)


def amplified(reference: NDArray[Any], image: NDArray[Any]) -> tuple[Pixels, int]:
    """The largest difference of each pixel's channels, times a whole number that makes the largest of all bright."""
    difference = np.nan_to_num(np.abs(reference - image), nan=255.0, posinf=255.0).max(-1)
    # Below a grey level it is rounding that no picture has to show.
    factor = max(1, round(255 / max(1.0, float(difference.max()))))
    grey = sheet.to_pixels(difference * factor)
    return np.repeat(grey[..., None], 3, axis=-1), factor
