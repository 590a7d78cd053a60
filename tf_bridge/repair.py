"""Images that one decoder reads and another does not, written again as a PNG of the same pixels that all read.

They go into a small TFRecord shard in the cache folder, made like the scan's entries: written aside, then renamed. Its
name is that of its content, so a file that a running data set reads is never written over with another.
"""

import hashlib
import io
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL
import tensorflow as tf
from PIL import Image

from dali_pipe import cache, scan, tfrecord
from dali_pipe import records as records_lib
from dali_pipe.records import Records, Table
from tf_bridge import decoders
from tf_bridge.verify import Finding

# What turns an image upright, by EXIF orientation.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_COPIED = ["length", "offset", "image_offset", "image_length", "height", "width", "orientation", "format"]


def repaired(records: Records, findings: Sequence[Finding], exif: bool) -> tuple[Records, tuple[Finding, ...]]:
    """The view with the images of `findings` that some decoder reads replaced, and the findings this cures.

    A replaced record keeps id, label and place in the order.

    Args:
        records: the view.
        findings: records of it whose image some decoder refused.
        exif: turn them by their EXIF orientation: a PNG has none that all decoders follow.

    Raises:
        OSError: the cache folder cannot be written.
    """
    cured = list[Finding]()
    for shard in dict.fromkeys(finding.shard for finding in findings):
        bad = [finding for finding in findings if finding.shard == shard]
        offsets = np.unique(np.array([finding.offset for finding in bad], np.int64))
        kept, path = _patch(records, shard, offsets, exif)
        if path is None:
            continue
        cured += [finding for finding in bad if finding.offset in kept]
        records = _pointed(records, shard, kept, path)
    return records, tuple(cured)


def _pointed(records: Records, shard: Path, offsets: np.ndarray, patch: Path) -> Records:
    """The view whose records at these offsets of a shard are read from its patch, which has them in that order."""
    status = os.stat(patch)
    rows = scan.scan_shard(patch, records.schema).table
    table = records.table.copy()
    places = np.flatnonzero(_lies_in(records, shard) & np.isin(table["offset"], offsets))
    source = rows[np.searchsorted(offsets, table["offset"][places])]
    for name in _COPIED:
        table[name][places] = source[name]
    table["shard"][places] = len(records.shards)
    return replace(
        records,
        table=table,
        shards=(*records.shards, patch),
        stamps=(*records.stamps, records_lib.stamp(status)) if records.stamps else (),
    )


def _patch(records: Records, shard: Path, offsets: np.ndarray, exif: bool) -> tuple[np.ndarray, Path | None]:
    """The offsets whose image could be written again, ascending, and the file that has them, if any."""
    schema = records.schema
    kind = f"repaired\0{schema.image_key}\0{exif}\0{decoders.available()}\0{PIL.__version__}"
    now = cache.fingerprint(shard)
    known = cache.load(shard, kind, now)
    if known is not None and np.array_equal(known["offsets"], offsets):
        path = _folder() / str(known["name"]) if known["kept"].size else None
        if path is None or path.is_file():
            return known["kept"], path
    rows = _rows(records, shard, offsets)
    kept, path = _written(shard, rows, schema.image_key, exif)
    name = np.array(path.name if path else "")
    cache.store(shard, kind, now, {"offsets": offsets, "kept": kept, "name": name})
    return kept, path


def _rows(records: Records, shard: Path, offsets: np.ndarray) -> Table:
    """A row of the table for each offset."""
    rows: Table = records.table[_lies_in(records, shard)]
    found, first = np.unique(rows["offset"], return_index=True)
    ordered: Table = rows[first[np.searchsorted(found, offsets)]]
    return ordered


def _lies_in(records: Records, shard: Path) -> np.ndarray:
    """Which records of the view lie in a shard, which may be listed more than once."""
    return np.isin(records.table["shard"], [place for place, path in enumerate(records.shards) if path == shard])


def _folder() -> Path:
    return cache.cache_folder() / "repaired"


def _written(shard: Path, rows: Table, image_key: str, exif: bool) -> tuple[np.ndarray, Path | None]:
    panel, kept, digest = decoders.Panel(), list[int](), hashlib.sha256()
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_folder(), suffix=".part") as aside:
            path = Path(aside) / "patch.tfrecord"
            with tf.io.TFRecordWriter(os.fspath(path)) as writer:
                for row in rows:
                    if payload := _mended(shard, row, image_key, exif, panel):
                        writer.write(payload)
                        digest.update(payload)
                        kept.append(int(row["offset"]))
            final = _folder() / f"{digest.hexdigest()[:32]}.tfrecord"
            if kept and not final.is_file():
                os.replace(path, final)
    except OSError as error:
        raise OSError(
            f"Repaired images go into the cache folder, which cannot be written: {error}. "
            'Set DALI_TF_CACHE to a writable folder, or use on_error="skip".'
        ) from error
    return np.array(kept, np.int64), final if kept else None


def _mended(shard: Path, row: np.void, image_key: str, exif: bool, panel: decoders.Panel) -> bytes | None:
    """The record's Example with a PNG for its image; None where nobody can read it."""
    payload = tfrecord.read_payload(shard, int(row["offset"]), int(row["length"]))
    start = int(row["image_offset"] - row["offset"]) - tfrecord.HEADER
    pixels = _pixels(payload[start : start + int(row["image_length"])])
    if pixels is None:
        return None
    if exif and row["orientation"] in _TURNS:
        pixels = pixels.transpose(_TURNS[int(row["orientation"])])
    out = io.BytesIO()
    pixels.save(out, "PNG")
    if panel.refusal(out.getvalue()):
        return None
    message = tf.train.Example.FromString(payload)
    message.features.feature[image_key].bytes_list.value[0] = out.getvalue()
    return bytes(message.SerializeToString())


def _pixels(image: bytes) -> Image.Image | None:
    """What TensorFlow reads, else Pillow; None where neither does."""
    try:
        return Image.fromarray(decoders.tensorflow_image(image).numpy())
    except tf.errors.OpError:
        pass
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return opened.convert("RGB")
    except Exception:  # Pillow raises many kinds over damaged images
        return None
