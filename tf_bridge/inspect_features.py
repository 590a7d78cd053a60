"""What TFDS's `features.json` says of each feature, beside what the records hold."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Declared(NamedTuple):
    """A feature as its author declared it; None is not said.

    Attributes:
        dtype: of the decoded values, such as "uint8".
        shape: of the decoded values; None in it is any number.
        classes: how many a label may be.
    """

    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    classes: int | None = None

    def __str__(self) -> str:
        if self.classes is not None:
            return f"{self.classes:,} classes"
        if not self.shape:
            return ""
        return f"{self.dtype or ''}[{', '.join('?' if n is None else str(n) for n in self.shape)}]"


def declared(folder: Path) -> dict[str, Declared]:
    """By key, those of nested features as `a/b`; nothing where there is no file that can be read."""
    try:
        return dict(_walk(json.loads((folder / "features.json").read_text(encoding="utf-8"))))
    except (OSError, ValueError, AttributeError, TypeError):  # the report does without it
        return {}


def _walk(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Declared]]:
    for key, feature in node.get("featuresDict", {}).get("features", {}).items():
        if "featuresDict" in feature:
            yield from _walk(feature, f"{prefix}{key}/")
            continue
        for of in feature.values():
            if isinstance(of, dict) and of.keys() & {"dtype", "shape", "numClasses"}:
                yield f"{prefix}{key}", _declared(of)


def _declared(feature: Mapping[str, Any]) -> Declared:
    dimensions = feature.get("shape", {}).get("dimensions")
    return Declared(
        dtype=feature.get("dtype"),
        shape=tuple(None if int(n) < 0 else int(n) for n in dimensions) if dimensions else None,
        classes=int(feature["numClasses"]) if "numClasses" in feature else None,
    )
