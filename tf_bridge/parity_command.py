"""`dali-tf parity`: the comparison of `parity.py` as a table or JSON, and as a picture."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from dali_pipe.recipe import Recipe
from dali_pipe.records import Records
from tf_bridge import cli_data, parity
from tf_bridge.columns import columns
from tf_bridge.parity import Row
from tf_bridge.parity_layers import layers
from tf_bridge.parity_sheet import draw, percent

WORST = 3  # images drawn for each row


def run(arguments: argparse.Namespace) -> int:
    """Compare, print and draw as the arguments say; returns the exit code."""
    recipe = cli_data.recipe(arguments)
    everything = cli_data.usable_records(arguments, recipe)
    records = spread(everything, arguments.count)
    options = {"seed": arguments.seed, "epoch": arguments.epoch, "num_threads": arguments.threads}
    total = len(records) * len(layers(recipe))
    with tqdm(total=total, desc="Comparing", unit=" images", leave=False, disable=None) as bar:
        rows = parity.compare(records, recipe, keep=WORST, tick=bar.update, **options)
    details = (
        f"{len(records)} of {len(everything)} images, seed {arguments.seed}, epoch {arguments.epoch}; "
        f"the worst of each layer against {parity.REFERENCE}"
    )
    draw(rows, records, cli_data.title(arguments, recipe), details).save(arguments.output)
    if arguments.json:
        print(json.dumps(report(rows, recipe, arguments), indent=2))
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


def report(rows: Sequence[Row], recipe: Recipe, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything the table says, for `json.dumps`."""
    return {
        "ok": all(row.ok for row in rows),
        "recipe": arguments.recipe,
        "size": cli_data.size(recipe),
        "dtype": recipe.dtype,
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
    return columns(cells, right={2, 3, 4, 6})
