"""`dali-tf preview`: a contact sheet of what the network will see."""

import argparse
import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from dali_pipe.geometry import Ints
from dali_pipe.ops import Crop
from dali_pipe.plan import FIRST_PARAMETER, Plan
from dali_pipe.recipe import Recipe
from dali_pipe.records import Records
from tf_bridge import cli_data, sheet, tfdata_engine
from tf_bridge.dataset import ImageDataset, from_records
from tf_bridge.sheet import MARGIN, Box, Pixels, Sheet
from tf_bridge.source import EpochCounter, Source

SMALLEST, LARGEST = 120, 256  # pixels of a tile's longer side
_GAP, _CAPTION, _TITLE = 8, 40, 72
_ASPECT, _WIDEST = 1.3, 2000  # of the sheet


@dataclass(frozen=True, eq=False)
class Sample:
    """One image before and after.

    Attributes:
        id: the record's ordinal in its split.
        label: the class's name, or its number.
        original: the whole image, uint8 `(height, width, 3)`.
        window: `(y, x, height, width)` that the recipe cuts out of it first, or None if it begins otherwise.
        augmented: what the recipe makes of it, as the engine hands it out.
    """

    id: int
    label: str
    original: Pixels
    window: tuple[int, int, int, int] | None
    augmented: NDArray[Any]


def run(arguments: argparse.Namespace) -> int:
    """Draw the sheet as the arguments say; returns the exit code."""
    recipe = cli_data.recipe(arguments)
    records = cli_data.usable_records(arguments, recipe)
    options = cli_data.engine(arguments)
    dataset = beginning(records, recipe, arguments.count, arguments.seed, arguments.epoch, **options)
    details = (
        f"{dataset.engine} on {dataset.device}, seed {arguments.seed}, epoch {arguments.epoch}: "
        f"the first {len(dataset.records)} of {len(records)} images"
    )
    draw(samples(dataset), recipe, cli_data.title(arguments, recipe), details).save(arguments.output)
    print(f"Engine:  {dataset.engine} on {dataset.device} ({dataset.reason})")
    print(f"Saved:   {arguments.output}, {len(dataset.records)} of {len(records)} images")
    return 0


def beginning(
    records: Records, recipe: Recipe, count: int, seed: int = 0, epoch: int = 0, **options: Any
) -> ImageDataset:
    """A dataset of one batch: the first `count` images of an epoch of these records, just as training gets them.

    Draws are keyed by `(seed, epoch, record)`, so reading only these records changes none of them.
    """
    order = Plan(records, recipe, seed, recipe.random).order(epoch)[:count]
    options |= {"shuffle": False, "drop_remainder": False, "batch_size": max(1, len(order)), "seed": seed}
    dataset = from_records(records.select(order), recipe=recipe, **options)
    dataset.set_epoch(epoch)
    return dataset


def samples(dataset: ImageDataset) -> list[Sample]:
    """The images of a dataset of one batch, before and after."""
    records, recipe = dataset.records, dataset.recipe
    source = Source(Plan(records, recipe, dataset.seed, False), len(records), False, False, EpochCounter())
    encoded, tickets, headers = source.encoded(dataset.epoch, 0)
    ((images, labels),) = cli_data.batches(dataset)
    classes = labels if labels.ndim == 1 else labels.argmax(1)
    return [
        Sample(
            id=int(records.ids[k]),
            label=cli_data.label_name(records, int(classes[k])),
            original=tfdata_engine.decode(tfdata_engine.Encoded(encoded[k], tickets[k], headers[k]), recipe).numpy(),
            window=_window(tickets[k], recipe),
            augmented=images[k],
        )
        for k in range(len(records))
    ]


def _window(ticket: Ints, recipe: Recipe) -> tuple[int, int, int, int] | None:
    if not isinstance(recipe.ops[0], Crop):
        return None
    y, x, height, width = ticket[FIRST_PARAMETER : FIRST_PARAMETER + 4].tolist()
    return y, x, height, width


@dataclass(frozen=True)
class Layout:
    """Where things are on the sheet: cards in rows, each of two tiles with a caption underneath.

    Attributes:
        count: cards.
        height: pixels of a tile.
        width: pixels of a tile.
        columns: cards in a row.
    """

    count: int
    height: int
    width: int
    columns: int

    @property
    def rows(self) -> int:
        """Rows of cards."""
        return -(-self.count // self.columns)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the sheet."""
        width = MARGIN + self.columns * (2 * self.width + _GAP + MARGIN)
        return width, _TITLE + self.rows * (self.height + _CAPTION) + MARGIN // 2

    def original(self, place: int) -> Box:
        """The left tile of a card."""
        row, column = divmod(place, self.columns)
        left = MARGIN + column * (2 * self.width + _GAP + MARGIN)
        return Box(left, _TITLE + row * (self.height + _CAPTION), self.width, self.height)

    def augmented(self, place: int) -> Box:
        """The right tile of a card."""
        left = self.original(place)
        return left._replace(left=left.right + _GAP)


def layout(count: int, recipe: Recipe) -> Layout:
    """As few empty places as can be, on a sheet a little wider than high."""
    height, width = sheet.tile_size(*recipe.output_shape[:2], SMALLEST, LARGEST)

    def badness(candidate: Layout) -> float:
        w, h = candidate.size
        empty = 1 - count / (candidate.rows * candidate.columns)
        return empty + abs(math.log(w / h / _ASPECT)) + 10 * (w > _WIDEST)

    return min((Layout(count, height, width, columns) for columns in range(1, count + 1)), key=badness)


def draw(samples: list[Sample], recipe: Recipe, title: str, details: str) -> Sheet:
    """The contact sheet."""
    plan = layout(len(samples), recipe)
    page = Sheet(*plan.size)
    room = plan.size[0] - 2 * MARGIN
    page.text(MARGIN, 14, title, 20, width=room)
    page.text(MARGIN, 42, details, 13, sheet.FAINT, width=room)
    for place, sample in enumerate(samples):
        _card(page, plan.original(place), plan.augmented(place), sample, recipe)
    return page


def _card(page: Sheet, left: Box, right: Box, sample: Sample, recipe: Recipe) -> None:
    inner = page.letterbox(left, sample.original)
    if sample.window is not None:
        page.outline(_scaled(sample.window, sample.original, inner))
    page.tile(right, sheet.to_pixels(sheet.grey_levels(sample.augmented, recipe)))
    height, width = sample.original.shape[:2]
    used = page.text_right(right.right, left.bottom + 7, f"#{sample.id}   {width}×{height}", 12, sheet.FAINT)
    page.text(left.left, left.bottom + 5, sample.label, 15, width=right.right - left.left - used - 12)


def _scaled(window: tuple[int, int, int, int], original: Pixels, inner: Box) -> Box:
    """A window of the image on the sheet, where the image is drawn in `inner`."""
    down, across = inner.height / original.shape[0], inner.width / original.shape[1]
    y, x, height, width = window
    top, bottom = round(y * down), round((y + height) * down)
    left, right = round(x * across), round((x + width) * across)
    return Box(inner.left + left, inner.top + top, max(1, right - left), max(1, bottom - top))
