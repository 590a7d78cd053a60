"""Sizes and orientations from headers, against Pillow and on damaged files."""

import io
import random
import struct
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dali_pipe.image_header import ImageHeader, UnknownImage, read_header
from dali_pipe.pages import open_pages
from tests import odd_images
from tests.odd_images import PLAIN, after_soi, encode, picture, segment, turned

OTHER_SIZES = {"tiny_1x1": (1, 1), "small_20x16": (20, 16), "wide_30x900": (30, 900)}
UNKNOWN = {"truncated_header", "empty", "garbage"}


def _read(data: bytes) -> ImageHeader:
    """The header, but for `whole`, which has tests of its own."""
    return read_header(data, 0, len(data))._replace(whole=True)


NOT_WHOLE = {
    *("truncated_half", "missing_eoi", "trailing_zeros", "trailing_junk", "ff00_between_segments"),
    *("gif", "bmp", "webp"),  # nobody looks at their ends: a decoder has to say
}


@pytest.mark.parametrize("name", sorted(set(odd_images.IMAGES) - {"truncated_header", "empty", "garbage"}))
def test_whole_images_end_as_their_format_says(name: str) -> None:
    data = odd_images.IMAGES[name]
    assert read_header(data, 0, len(data)).whole == (name not in NOT_WHOLE)


@pytest.mark.parametrize("bits", [2, 12, 16, 17, 255])
def test_samples_of_other_than_8_bits_are_for_a_decoder_to_judge(bits: int) -> None:
    at = PLAIN.index(b"\xff\xc0") + 4
    data = PLAIN[:at] + bytes([bits]) + PLAIN[at + 1 :]
    assert read_header(PLAIN, 0, len(PLAIN)).whole
    assert read_header(data, 0, len(data)) == ImageHeader("jpeg", 48, 64, whole=False)


def _expected(name: str) -> ImageHeader:
    kind = name.partition("_")[0] if name.startswith(("png", "gif", "bmp", "webp")) else "jpeg"
    turn = int(name[-1]) if name.startswith("exif_orientation") else 1
    return ImageHeader(kind, *OTHER_SIZES.get(name, (48, 64)), turn)


@pytest.mark.parametrize("name", sorted(set(odd_images.IMAGES) - UNKNOWN))
def test_odd_images(name: str) -> None:
    assert _read(odd_images.IMAGES[name]) == _expected(name)


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_unknown_images(name: str) -> None:
    data = odd_images.IMAGES[name]
    beginning = data[:8].hex(" ") or "nothing"
    with pytest.raises(UnknownImage, match=f"^no image format begins with {beginning}$"):
        _read(data)


@pytest.mark.parametrize("data", [b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8\xff\xc0", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_beginnings_of_images_are_unknown(data: bytes) -> None:
    with pytest.raises(UnknownImage, match="no image format begins with"):
        _read(data)


@pytest.mark.parametrize(("height", "width"), [(0, 64), (48, 0)])
def test_a_side_of_0_is_refused(height: int, width: int) -> None:
    frame = segment(0xC0, struct.pack(">BHHB", 8, height, width, 3) + bytes(9))
    with pytest.raises(UnknownImage, match=f"claims a size of {height}x{width}"):
        _read(after_soi(frame))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpegs_of_every_coding_read_as_pillow_reads_them(mode: str) -> None:
    sizes = [(1, 1), (7, 300), (300, 7), (48, 64)]
    for size, progressive, subsampling in product(sizes, (False, True), (0, 1, 2)):
        options: dict[str, Any] = {
            "progressive": progressive,
            "subsampling": subsampling,
            "comment": b"\xff\xc0\0\x11 not a frame",
        }
        data = encode(picture(*size, mode), **options, restart_marker_rows=1, icc_profile=b"p" * 70_000)
        with Image.open(io.BytesIO(data)) as image:
            assert _read(data) == ImageHeader("jpeg", image.height, image.width, 1) == ImageHeader("jpeg", *size, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations(orientation: int) -> None:
    assert _read(turned(orientation)).orientation == orientation


def _exif(order: str, value: int, tag: int = 0x0112, kind: int = 3) -> bytes:
    """An APP1 segment with one directory entry, in a byte order of TIFF's."""
    endian = "<" if order == "II" else ">"
    entry = struct.pack(f"{endian}HHIHH", tag, kind, 1, value, 0)
    head = order.encode() + struct.pack(f"{endian}HI", 42, 8)
    return segment(0xE1, b"Exif\0\0" + head + struct.pack(f"{endian}H", 1) + entry + bytes(4))


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize(("value", "orientation"), [(6, 6), (8, 8), (0, 1), (9, 1), (65535, 1)])
def test_orientations_in_both_byte_orders(order: str, value: int, orientation: int) -> None:
    assert _read(after_soi(_exif(order, value))) == ImageHeader("jpeg", 48, 64, orientation)


@pytest.mark.parametrize(
    "inserted",
    [
        _exif("II", 6, tag=0x0113),  # another tag
        segment(0xE1, b"Exif\0\0"),
        segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\xff"),
        segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12"),
        segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\x7f"),
        segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<tiff:Orientation>6</tiff:Orientation>"),
        segment(0xE2, _exif("II", 6)[4:]),  # another segment
        segment(0xE1, b"Exif\0\0" + b"\xff\xd8" + PLAIN[2:400]),
        segment(0xFE, PLAIN[:600]),  # a whole header of another image inside a comment
        b"".join(segment(0xE0 + n, bytes([n]) * 65533) for n in range(16)),
        segment(0xEF, b"\xff\xc0" * 3000),
        b"\xff\x01" + b"\xff\xd0",  # markers without a length
        b"\xff" * 50,
        b"junk between segments",
        b"\xff\x00\xff\x00",
        segment(0xC4, bytes(3)) + segment(0xC8, bytes(9)) + segment(0xCC, bytes(9)),  # no frames, though numbered so
        b"\xff\xed\x00\x00",  # a length that does not even count itself
    ],
)
def test_what_stands_before_the_frame_is_passed_over(inserted: bytes) -> None:
    assert _read(after_soi(inserted)) == ImageHeader("jpeg", 48, 64, 1)


@pytest.mark.parametrize("marker", sorted({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}))
def test_every_kind_of_frame(marker: int) -> None:
    frame = segment(marker, struct.pack(">BHHB", 8, 300, 500, 3) + bytes(9))
    assert _read(b"\xff\xd8" + frame) == ImageHeader("jpeg", 300, 500)


def test_only_the_bytes_between_the_positions_count(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(b"\xff" * 99 + turned(6) + odd_images.IMAGES["png"] + PLAIN[:100])
    jpeg_end = 99 + len(turned(6))
    png_end = jpeg_end + len(odd_images.IMAGES["png"])
    with open_pages(path) as data:
        assert read_header(data, 99, jpeg_end) == ImageHeader("jpeg", 48, 64, 6)
        assert read_header(data, jpeg_end, png_end) == ImageHeader("png", 48, 64, 1)
        with pytest.raises(UnknownImage):
            read_header(data, 99, 120)


def test_every_beginning_of_a_jpeg_is_unknown_or_right() -> None:
    data = after_soi(_exif("MM", 3) + b"junk\xff\x00")
    frame = data.find(b"\xff\xc0")
    for end in range(frame + 200):
        try:
            assert _read(data[:end]) == ImageHeader("jpeg", 48, 64, 3)
            assert end >= frame + 9
        except UnknownImage:
            assert end < frame + 9


def test_damaged_headers_raise_nothing_else() -> None:
    rng = random.Random(3)
    whole = [after_soi(_exif("II", 6)), *(odd_images.IMAGES[name] for name in ("png", "gif", "bmp", "webp"))]
    for data in whole:
        for _ in range(300):
            damaged = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(min(len(data), 60))] = rng.randrange(256)
            try:
                assert min(_read(bytes(damaged))[1:3]) >= 1
            except UnknownImage:
                continue
