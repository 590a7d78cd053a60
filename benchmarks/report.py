"""What was measured, for people: tables, ratios, goals, plots, and one HTML file that holds all of it."""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import goals, rounds
from benchmarks.pipelines import PIPELINES
from benchmarks.rounds import Spread, ratio, spread
from tf_bridge.machine import one_line

_WITHIN = "Ratios within each round, median over the rounds."
Results = Mapping[str, Any]
Row = Mapping[str, Any]


class Table(NamedTuple):
    """A heading, column names, rows of text, and what is to be said under it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


def tables(results: Results) -> list[Table]:
    """The tables of one saved result; one without rows stays if it says why."""
    makers = {"run": _run_tables, "share": _share_tables, "scaling": _curve_tables}
    return [table for table in makers[results["command"]](results) if table.rows or table.note]


def text(results: Iterable[Results]) -> str:
    """Markdown."""
    return "\n\n".join(part for result in results for part in (_heading(result), *map(markdown, tables(result))))


def _heading(results: Results) -> str:
    machine, settings = results["machine"], results["settings"]
    return (
        f"{machine['date'][:10]}, {one_line(machine)}; commit {machine['commit']}; median (lowest-highest) of "
        f"{settings['rounds']} rounds, {settings['seconds']} s each; crops of {settings['size']}, "
        f"batch {settings['batch_size']}, our inverse DCT {settings['dct']}"
    )


def markdown(table: Table) -> str:
    """The table in Markdown, columns aligned for those who read it as it is."""
    lines = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [_pad(cell, width, k > 0) for k, (cell, width) in enumerate(zip(line, widths, strict=True))] for line in lines
    ]
    body = "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))
    return f"**{table.title}**\n\n{body}" + (f"\n\n{table.note}" if table.note else "")


def _pad(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)


def figure(value: Spread | None, form: str | None = None) -> str:
    """`median (low-high)`, in a form that suits the median unless one is given; a dash where nothing was measured."""
    if value is None:
        return "-"
    form = form or rounds.form(value.median)
    return f"{value.median:{form}} ({value.low:{form}}-{value.high:{form}})"


def _run_tables(results: Results) -> Iterable[Table]:
    rows = results["rows"]
    for recipe in dict.fromkeys(row["case"]["recipe"] for row in rows):
        yield _speed_table(recipe, [row for row in rows if row["case"]["recipe"] == recipe])
    if lines := goals.lines(rows):
        yield Table("Goals", goals.COLUMNS, lines, _WITHIN)
    variants: list[tuple[str, ...]] = [
        (f"{tried['recipe']} {tried['dtype']} {variant}", f"{speed:,.0f}")
        for tried in results["variants"]
        for variant, speed in tried["images_per_second"].items()
    ]
    if variants:
        note = "Median of three tries before the rounds; the fastest is the table's `tuned`."
        yield Table("tf.data's variants", ("case", "images/s"), variants, note)


def _speed_table(recipe: str, rows: Sequence[Row]) -> Table:
    measured = [row for row in rows if row["rounds"]]
    with_gpu = any("gpu_percent" in row["rounds"][0] for row in measured)
    columns = ("pipeline", "dtype", "images/s", "CPU ms/image", "× tuned", "first batch s", "start s", "memory MB")
    return Table(
        f"{recipe}: images a second and what they cost",
        columns + ("GPU %", "GPU MB") * with_gpu,
        [_speed_line(row, _baseline(row, measured), with_gpu) for row in measured],
        _missing(rows),
    )


def _speed_line(row: Row, baseline: Row | None, with_gpu: bool) -> tuple[str, ...]:
    cells = [row["name"], row["case"]["dtype"]]
    cells += [figure(spread(row, "images_per_second")), figure(spread(row, "cpu_ms_per_image"), ".3f")]
    cells += [figure(ratio(row, baseline, "images_per_second") if baseline else None, ".2f")]
    cells += [figure(spread(row, "first_batch_seconds"), ".2f"), figure(spread(row, "start_seconds"), ".1f")]
    cells += [figure(spread(row, "peak_memory_mb"))]
    gpu = [figure(spread(row, "gpu_percent")), figure(spread(row, "gpu_memory_mb"))]
    return tuple(cells + gpu * with_gpu)


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Tuned tf.data with the same recipe and dtype."""
    same = ("recipe", "dtype")
    alike = (other for other in rows if all(other["case"][key] == row["case"][key] for key in same))
    return next((other for other in alike if other["case"]["pipeline"] == "tuned"), None)


def _missing(rows: Sequence[Row]) -> str:
    """Why cases are not in the table."""
    told = [
        f"{row['case']['recipe']} {row['case']['dtype']} {row['name']} {state}: {row[state]}"
        for row in rows
        for state in ("skipped", "failed")
        if state in row
    ]
    return "  \n".join(told)


def _share_tables(results: Results) -> Iterable[Table]:
    measured = [row for row in results["rows"] if row["rounds"]]
    yield Table(
        "How much of a training step waits for input",
        ("pipeline", "recipe", "dtype", "model", "step ms", "cached step ms", "input-bound"),
        [_share_line(row, results["settings"]) for row in measured],
        _missing(results["rows"]),
    )


def _share_line(row: Row, settings: Mapping[str, Any]) -> tuple[str, ...]:
    case, found = row["case"], row["rounds"][0]
    simulated = f"simulated, {settings['accelerator']:,.0f} images/s"
    model = simulated if found["simulated"] else f"ResNet-18/{settings['width']} fit, {found['device']}"
    steps = [figure(spread(row, key), ".1f") for key in ("step_ms", "cached_step_ms")]
    return row["name"], case["recipe"], case["dtype"], model, *steps, figure(spread(row, "input_bound"), ".0%")


def _curve_tables(results: Results) -> Iterable[Table]:
    for curve in results["curves"]:
        measured = [row for row in curve["rows"] if row["rounds"]]
        found = measured[0]["rounds"][0] if measured else {}
        keys = [key for key, value in found.items() if isinstance(value, float | int)]
        if "images_per_second" in keys:
            keys = ["images_per_second", "cpu_ms_per_image", "first_batch_seconds"]
        yield Table(
            f"Scaling: {curve['curve']}",
            (curve["curve"], "pipeline", *(key.replace("_", " ") for key in keys)),
            [(f"{row['x']}", row["name"], *(figure(spread(row, key)) for key in keys)) for row in measured],
            _missing(curve["rows"]),
        )
        if curve["curve"] == "index" and measured:
            yield Table("Goal", goals.COLUMNS, goals.index(measured), _WITHIN)


def write(results: Sequence[Results], folder: Path) -> Path:
    """`report.html`, which holds everything, and the plots as PNGs beside it; returns the HTML's path."""
    from benchmarks import plots

    folder.mkdir(parents=True, exist_ok=True)
    pictures = [(name, png) for result in results for name, png in plots.draw(result)]
    for name, png in pictures:
        (folder / f"{name}.png").write_bytes(png)
    page = folder / "report.html"
    page.write_text(_html(results, pictures), encoding="utf-8")
    return page


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% } p.note { color: #555; white-space: pre-line }
"""


def _html(results: Sequence[Results], pictures: Sequence[tuple[str, bytes]]) -> str:
    body = ["<h1>Benchmarks</h1>"]
    for result in results:
        body.append(f"<p class=note>{html.escape(_heading(result))}</p>")
        body += map(_html_table, tables(result))
    body += [
        f'<h3>{html.escape(name)}</h3><img alt="{html.escape(name)}" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for name, png in pictures
    ]
    body.append("<h3>The pipelines</h3><dl>")
    body += [f"<dt><b>{name}</b></dt><dd>{html.escape(what)}</dd>" for name, what in PIPELINES.items()]
    head = f"<meta charset=utf-8><title>Benchmarks</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</dl></body></html>"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    note = f"<p class=note>{html.escape(table.note)}</p>" if table.note else ""
    return f"<h3>{html.escape(table.title)}</h3><table><tr>{head}</tr>{rows}</table>{note}"
