"""Small encoded images of every kind that real data sets hold, sound and broken; 48 rows by 64 columns unless named.

`IMAGES` has the bytes by name. `TF_REFUSES` and `DALI_REFUSES` name those that `tf.io.decode_jpeg(channels=3)` and
DALI's CPU decoder raise over; the others they decode.
"""

import io
import struct

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 48, 64


def picture(height: int = HEIGHT, width: int = WIDTH, mode: str = "RGB") -> Image.Image:
    """A smooth picture: red grows to the right, green downwards, blue along the diagonal."""
    y, x = np.mgrid[0:height, 0:width] / np.array([max(height - 1, 1), max(width - 1, 1)]).reshape(2, 1, 1)
    pixels = np.stack([x, y, (x + y) / 2], axis=-1) * 255
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


def encode(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    """The image in a format of Pillow's."""
    out = io.BytesIO()
    image.save(out, kind, **({"quality": 92} if kind == "JPEG" else {}), **options)
    return out.getvalue()


PLAIN = encode(picture())


def segment(marker: int, payload: bytes) -> bytes:
    """A JPEG marker segment with its length."""
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def after_soi(inserted: bytes, image: bytes = PLAIN) -> bytes:
    """A JPEG with bytes put behind its first marker."""
    return image[:2] + inserted + image[2:]


def turned(orientation: int, image: Image.Image | None = None) -> bytes:
    """A JPEG whose EXIF asks to be turned."""
    exif = Image.Exif()
    exif[274] = orientation
    return encode(image or picture(), exif=exif.tobytes())


def without_table(image: bytes = PLAIN) -> bytes:
    """Whole from outside, but without a quantization table, which no decoder can do without."""
    table = image.index(b"\xff\xdb")
    length = int.from_bytes(image[table + 2 : table + 4], "big")
    return image[:table] + image[table + 2 + length :]


def _flipped_bits() -> bytes:
    """Damage inside the entropy-coded scan, which decoders conceal."""
    damaged = bytearray(PLAIN)
    start = PLAIN.rfind(b"\xff\xda") + 40
    damaged[start : start + 6] = (byte ^ 0x5A for byte in damaged[start : start + 6])
    return bytes(damaged)


def _gray_16_bit() -> bytes:
    values = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) * 20
    return encode(Image.fromarray(values), "PNG")


IMAGES: dict[str, bytes] = {
    "plain": PLAIN,
    "gray": encode(picture(mode="L")),
    "cmyk": encode(picture(mode="CMYK")),
    "progressive": encode(picture(), progressive=True),
    "444": encode(picture(), subsampling=0),
    "tiny_1x1": encode(picture(1, 1)),
    "small_20x16": encode(picture(20, 16)),
    "wide_30x900": encode(picture(30, 900)),
    **{f"exif_orientation_{turn}": turned(turn) for turn in (2, 3, 6, 8)},
    "fill_ff_after_soi": after_soi(b"\xff\xff\xff"),
    "ff00_between_segments": after_soi(b"\xff\x00"),
    "app13_bad_inner_length": after_soi(segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\0\0\xff\xff\xff\xffabc")),
    "app13_no_terminator": after_soi(segment(0xED, b"Photoshop 3.0")),
    "exif_garbage": after_soi(segment(0xE1, b"Exif\0\0II*\0" + b"\xff" * 34)),
    "trailing_zeros": PLAIN + bytes(4096),
    "trailing_junk": PLAIN + b"hello world" * 50,
    "truncated_half": PLAIN[: len(PLAIN) // 2],
    "missing_eoi": PLAIN[:-2],
    "truncated_header": PLAIN[:30],
    "empty": b"",
    "garbage": np.random.default_rng(0).bytes(500),
    "png": encode(picture(), "PNG"),
    "png_rgba": encode(picture(mode="RGBA"), "PNG"),
    "gif": encode(picture(), "GIF"),
    "bmp": encode(picture(), "BMP"),
    "webp": encode(picture(), "WEBP"),
    "png_16bit_gray": _gray_16_bit(),
    "bitflips_in_scan": _flipped_bits(),
}

_BROKEN = frozenset({"truncated_half", "missing_eoi", "truncated_header", "empty", "garbage"})
TF_REFUSES = _BROKEN | {"bmp"}
DALI_REFUSES = _BROKEN | {"ff00_between_segments", "gif"}
