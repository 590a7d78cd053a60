"""Size, format and orientation of an encoded image, from its first bytes."""

import io
from typing import NamedTuple

from dali_pipe.pages import Buffer

FORMATS = ("jpeg", "png", "gif", "bmp", "webp", "tiff", "other")
# Start-of-frame markers; C4, C8 and CC share the range and mean something else (ITU-T T.81, table B.1).
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1
_PRECISION = 8  # bits of a sample; more than 16 take DALI 2.4 down, fewer or more no JPEG decoder here reads


class ImageHeader(NamedTuple):
    """What an image's header claims.

    Attributes:
        format: one of `FORMATS`.
        height: pixels as stored, before any turn by `orientation`.
        width: pixels as stored.
        orientation: EXIF's 1 to 8; 1 where there is none.
        whole: nothing stands between a JPEG's segments, its samples have 8 bits, and the last bytes are the format's
            end mark. Of other images a decoder has to say whether they are sound; JPEGs and PNGs that are cut short
            are never whole.
    """

    format: str
    height: int
    width: int
    orientation: int = 1
    whole: bool = True


class UnknownImage(ValueError):
    """The bytes begin like no image format that can be read here."""


def read_header(data: Buffer, start: int, end: int) -> ImageHeader:
    """The header of the image between two positions.

    JPEGs are walked here, marker by marker: a data set's scan does this a million times, and opening each in Pillow
    takes ten times as long. Everything else is Pillow's.

    Raises:
        UnknownImage: no header, or sides of 0.
    """
    header = _jpeg(data, start, end) if data[start : start + 2] == b"\xff\xd8" else None
    header = header or _pillow(data[start:end])
    if not (header.height and header.width):
        raise UnknownImage(f"the image claims a size of {header.height}x{header.width}")
    return header


def _jpeg(data: Buffer, start: int, end: int) -> ImageHeader | None:
    """Follows libjpeg's `next_marker`: bytes between segments, and stuffed FF 00, are passed over."""
    at, orientation, whole = start + 2, 1, data[max(end - 2, start) : end] == b"\xff\xd9"
    while len(head := data[at : min(at + 9, end)]) >= 4:
        if head[0] != 0xFF or head[1] in (0x00, 0xFF):
            whole &= head[:2] == b"\xff\xff"  # fill bytes are in order
            at += 1
            continue
        marker = head[1]
        at += 2
        if marker in _BARE:
            continue
        if marker in (_SOS, _EOI):
            return None
        if marker in _SOF and len(head) == 9:
            whole &= head[4] == _PRECISION
            return ImageHeader("jpeg", head[5] << 8 | head[6], head[7] << 8 | head[8], orientation, whole)
        length = head[2] << 8 | head[3]
        if marker == _APP1 and data[at + 2 : min(at + 8, end)] == b"Exif\0\0":
            orientation = _orientation(data[at + 8 : min(at + length, end)])
        at += max(length, 2)
    return None


def _orientation(tiff: bytes) -> int:
    from PIL import ExifTags, Image

    exif = Image.Exif()
    try:
        exif.load(b"Exif\0\0" + tiff)
        value = exif.get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises many kinds over damaged EXIF, and none of them concerns the image
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _pillow(data: bytes) -> ImageHeader:
    from PIL import Image  # a fifth of this package's start-up

    try:
        with Image.open(io.BytesIO(data)) as image:
            kind = (image.format or "").lower()
            whole = kind == "png" and data[-8:-4] == b"IEND"
            return ImageHeader(kind if kind in FORMATS else "other", image.height, image.width, whole=whole)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnknownImage(f"its header claims too much. {error}") from error
    except Exception as error:
        raise UnknownImage(f"no image format begins with {data[:8].hex(' ') or 'nothing'}") from error
