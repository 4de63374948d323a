"""ImageDecoder: decodes PNG, BMP, PNM, TIFF and baseline JPEG files with the standard library alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn
from .jpeg import decode_jpeg


def _image_decoder(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute ImageDecoder. The operand holds the bytes of a file; the output is uint8 [height, width, channels]."""
    pixels = decode_image(np.ascontiguousarray(inputs[0], np.uint8).tobytes())
    return [_in_format(pixels, attrs.get("pixel_format", "RGB"))]


def decode_image(data: bytes) -> np.ndarray:
    """Return the pixels of an image file, uint8 [height, width, 1 or 3]. Raises `HostError` for unsupported formats."""
    try:
        if data.startswith(b"\xff\xd8"):
            return decode_jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(data)
        if data.startswith(b"BM"):
            return _bmp(data)
        if data[:2] in (b"P2", b"P3", b"P5", b"P6"):
            return _pnm(data)
        if data[:4] in (b"II*\0", b"MM\0*"):
            return _tiff(data)
    except (struct.error, zlib.error, ValueError, IndexError, KeyError) as error:
        raise HostError(f"the image file is cut off or damaged ({error}); give it whole") from error
    raise HostError(
        "the image is none of JPEG, PNG, BMP, PNM and TIFF; JPEG 2000 and WebP are not supported: "
        "convert it, or decode it outside of the model"
    )


def _in_format(pixels: np.ndarray, pixel_format: str) -> np.ndarray:
    if pixel_format == "Grayscale":
        return pixels if pixels.shape[-1] == 1 else _luma(pixels)
    if pixel_format not in ("RGB", "BGR"):
        raise HostError(f"pixel_format {pixel_format!r} is none of RGB, BGR, Grayscale")
    colour = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    return np.array(colour[..., ::-1] if pixel_format == "BGR" else colour)


def _luma(pixels: np.ndarray) -> np.ndarray:
    """Return the ITU-R 601 luma, in 16-bit fixed point."""
    weighted = pixels.astype(np.int32) @ np.array([19595, 38470, 7471], np.int32)
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[..., None]


def _without_alpha(pixels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pixels[..., : 1 if pixels.shape[-1] < 3 else 3])


# --- PNG -------------------------------------------------------------------------------------------------------------

_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def _png(data: bytes) -> np.ndarray:
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        chunks[kind] = chunks.get(kind, b"") + data[at + 8 : at + 8 + size]
        at += 12 + size
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if interlace:
        raise HostError("ImageDecoder does not read interlaced PNG files")
    channels = _PNG_CHANNELS[colour]
    row_bytes = (width * channels * depth + 7) // 8
    rows = _unfiltered(zlib.decompress(chunks[b"IDAT"]), height, row_bytes, max(1, channels * depth // 8))
    samples = _png_samples(rows, width * channels, depth).reshape(height, width, channels)
    if colour == 3:
        palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
        return palette[samples[..., 0]]
    if depth < 8:
        samples = (samples.astype(np.int32) * 255 // ((1 << depth) - 1)).astype(np.uint8)
    return _without_alpha(samples)


def _png_samples(rows: np.ndarray, count: int, depth: int) -> np.ndarray:
    """Return one byte per sample; of 16-bit samples the upper byte."""
    if depth == 8:
        return rows
    if depth == 16:
        return rows[:, ::2]
    bits = np.unpackbits(rows, axis=1).reshape(len(rows), -1, depth)
    return (bits @ (1 << np.arange(depth)[::-1])).astype(np.uint8)[:, :count]


def _unfiltered(data: bytes, height: int, row_bytes: int, pixel_bytes: int) -> np.ndarray:
    """Return rows with PNG's prediction undone; every row is preceded by the number of its filter."""
    lines = np.frombuffer(data, np.uint8)[: height * (row_bytes + 1)].reshape(height, row_bytes + 1)
    above = np.zeros(row_bytes + pixel_bytes, np.int32)
    result = np.empty((height, row_bytes), np.uint8)
    for y, line in enumerate(lines):
        row = np.zeros(row_bytes + pixel_bytes, np.int32)
        row[pixel_bytes:] = line[1:]
        _undo_filter(int(line[0]), row, above, pixel_bytes)
        result[y] = row[pixel_bytes:]
        above = row
    return result


def _undo_filter(kind: int, row: np.ndarray, above: np.ndarray, step: int) -> None:
    """Undo a filter in place; the first `step` entries stand for the pixel left of the row, which is zero."""
    if kind == 0:
        return
    if kind == 2:
        row += above
        row &= 255
        return
    if kind > 4:
        raise HostError(f"the PNG file is damaged: there is no filter {kind}")
    for i in range(step, len(row)):
        left, up, corner = int(row[i - step]), int(above[i]), int(above[i - step])
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            estimate = left + up - corner
            guess = min((left, up, corner), key=lambda v: abs(estimate - v))
        row[i] = (row[i] + guess) & 255


# --- BMP, PNM, TIFF --------------------------------------------------------------------------------------------------


def _bmp(data: bytes) -> np.ndarray:
    offset, header, width, height = struct.unpack_from("<IIii", data, 10)
    planes, bits, compression = struct.unpack_from("<HHI", data, 26)
    if planes != 1 or bits not in (8, 24, 32) or compression != 0:
        raise HostError("ImageDecoder reads uncompressed BMP files of 8, 24 or 32 bits only")
    stride = (width * bits // 8 + 3) // 4 * 4
    rows = np.frombuffer(data, np.uint8, stride * abs(height), offset).reshape(abs(height), stride)
    pixels: np.ndarray = rows[:, : width * bits // 8].reshape(abs(height), width, bits // 8)
    if height > 0:
        pixels = pixels[::-1]  # stored from the bottom up
    if bits == 8:
        (count,) = struct.unpack_from("<I", data, 46)
        palette = np.frombuffer(data, np.uint8, 4 * (count or 256), 14 + header).reshape(-1, 4)
        pixels = palette[pixels[..., 0]]
    return np.ascontiguousarray(pixels[..., 2::-1])  # stored as blue, green, red


def _pnm(data: bytes) -> np.ndarray:
    fields: list[int] = []
    at = 2
    while len(fields) < 3:
        while data[at : at + 1].isspace():
            at += 1
        if data[at : at + 1] == b"#":
            at = data.index(b"\n", at)
            continue
        end = at
        while data[end : end + 1].isdigit():
            end += 1
        fields.append(int(data[at:end]))
        at = end
    width, height, largest = fields
    if not 0 < largest < 65536:
        raise HostError(f"the PNM file is damaged: its largest value is {largest}")
    channels = 3 if data[:2] in (b"P3", b"P6") else 1
    count = width * height * channels
    if data[:2] in (b"P2", b"P3"):
        samples = np.array(data[at:].split()[:count], np.int64)
    else:
        samples = np.frombuffer(data, np.uint8 if largest < 256 else ">u2", count, at + 1).astype(np.int64)
    return (samples * 255 // largest).astype(np.uint8).reshape(height, width, channels)


_TIFF_TYPES = {1: "B", 3: "H", 4: "I"}


def _tiff(data: bytes) -> np.ndarray:
    order = "<" if data[:2] == b"II" else ">"
    tags = _tiff_tags(data, order)
    (width,), (height,) = tags[256], tags[257]
    samples = tags.get(277, (1,))[0]
    compression, photometric = tags.get(259, (1,))[0], tags[262][0]
    if compression not in (1, 8, 32946) or photometric not in (0, 1, 2) or set(tags.get(258, (1,))) != {8}:
        raise HostError("ImageDecoder reads TIFF files of 8-bit grey or RGB, plain or deflated, only")
    if tags.get(284, (1,))[0] != 1 or tags.get(317, (1,))[0] != 1 or 273 not in tags:
        raise HostError("ImageDecoder reads TIFF files in interleaved strips without predictor only")
    strips = [data[at : at + size] for at, size in zip(tags[273], tags[279], strict=True)]
    plain = b"".join(strips if compression == 1 else map(zlib.decompress, strips))
    pixels = _without_alpha(np.frombuffer(plain, np.uint8, width * height * samples).reshape(height, width, samples))
    return 255 - pixels if photometric == 0 else pixels


def _tiff_tags(data: bytes, order: str) -> dict[int, tuple[int, ...]]:
    """Return the integer tags of the first image."""
    (at,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, at)
    tags: dict[int, tuple[int, ...]] = {}
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, length = struct.unpack_from(order + "HHI", data, entry)
        if kind not in _TIFF_TYPES:
            continue
        layout = f"{order}{length}{_TIFF_TYPES[kind]}"
        inside = struct.calcsize(layout) <= 4
        place = entry + 8 if inside else struct.unpack_from(order + "I", data, entry + 8)[0]
        tags[tag] = struct.unpack_from(layout, data, place)
    return tags


TABLE: Mapping[str, HostFn] = {"ImageDecoder": _image_decoder}
