"""ImageDecoder: what is written here by plain encoders is read back."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from tests.runtime.host.reference import run
from tilestitch.runtime.host import HostError

RANDOM = np.random.default_rng(14)


def decode(data: bytes, pixel_format: str = "RGB") -> np.ndarray:
    return run("ImageDecoder", np.frombuffer(data, np.uint8), pixel_format=pixel_format)


def image(height: int, width: int, channels: int = 3) -> np.ndarray:
    return RANDOM.integers(0, 256, size=(height, width, channels), dtype=np.uint8)


# --- PNG -------------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    rows: np.ndarray, width: int, depth: int, colour: int, filters: list[int], step: int, extra: bytes = b""
) -> bytes:
    """`rows` are the bytes of each row; row i is predicted by filter i."""
    lines = []
    above = np.zeros_like(rows[0], np.int32)
    for kind, row in zip(filters, rows.astype(np.int32)):
        left = np.concatenate([np.zeros(step, np.int32), row[:-step]])
        corner = np.concatenate([np.zeros(step, np.int32), above[:-step]])
        guesses = [0 * row, left, above, (left + above) // 2, paeth(left, above, corner)]
        lines.append(bytes([kind]) + ((row - guesses[kind]) & 255).astype(np.uint8).tobytes())
        above = row
    header = struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0)
    data = zlib.compress(b"".join(lines))
    parts = chunk(b"IHDR", header) + extra + chunk(b"IDAT", data[:7]) + chunk(b"IDAT", data[7:]) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def paeth(left: np.ndarray, up: np.ndarray, corner: np.ndarray) -> np.ndarray:
    estimate = left + up - corner
    distance = np.abs(np.stack([left, up, corner]) - estimate)
    return np.choose(np.argmin(distance, 0), [left, up, corner])


def test_png_undoes_every_filter() -> None:
    x = image(5, 7)
    np.testing.assert_array_equal(decode(png(x.reshape(5, -1), 7, 8, 2, [0, 1, 2, 3, 4], 3)), x)
    np.testing.assert_array_equal(decode(png(x.reshape(5, -1), 7, 8, 2, [4, 3, 4, 1, 2], 3), "BGR"), x[..., ::-1])


def test_png_drops_alpha_and_the_lower_byte_of_16_bits() -> None:
    x = image(3, 4, 4)
    np.testing.assert_array_equal(decode(png(x.reshape(3, -1), 4, 8, 6, [4, 4, 4], 4)), x[..., :3])
    wide = RANDOM.integers(0, 65536, size=(3, 4, 3)).astype(">u2")
    rows = wide.reshape(3, -1).view(np.uint8)
    np.testing.assert_array_equal(decode(png(rows, 4, 16, 2, [1, 2, 4], 6)), wide >> 8)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_png_greys_of_few_bits_span_the_whole_range(depth: int) -> None:
    levels = RANDOM.integers(0, 1 << depth, size=(3, 11))
    bits = (levels[..., None] >> np.arange(depth)[::-1]) & 1
    rows = np.packbits(bits.reshape(3, -1), axis=1)
    expected = levels * 255 // ((1 << depth) - 1)
    np.testing.assert_array_equal(decode(png(rows, 11, depth, 0, [0, 1, 2], 1), "Grayscale")[..., 0], expected)


def test_png_palette() -> None:
    palette, indices = image(1, 5)[0], RANDOM.integers(0, 5, size=(2, 6)).astype(np.uint8)
    data = png(indices, 6, 8, 3, [0, 2], 1, chunk(b"PLTE", palette.tobytes()))
    np.testing.assert_array_equal(decode(data), palette[indices])


# --- BMP, PNM, TIFF --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_down", [False, True])
@pytest.mark.parametrize("bits", [8, 24, 32])
def test_bmp_rows_are_padded_and_may_be_upside_down(bits: int, top_down: bool) -> None:
    x, palette = image(3, 5), image(1, 256, 4)[0]
    if bits == 8:
        indices = image(3, 5, 1)
        x, rows = palette[indices[..., 0]][..., 2::-1], indices
    else:
        rows = x[..., ::-1] if bits == 24 else np.concatenate([x[..., ::-1], image(3, 5, 1)], -1)
    stored = np.pad(rows.reshape(3, -1), [(0, 0), (0, -rows.reshape(3, -1).shape[1] % 4)])
    table = palette.tobytes() if bits == 8 else b""
    offset = 54 + len(table)
    header = struct.pack("<2sIHHI", b"BM", offset + stored.size, 0, 0, offset)
    header += struct.pack("<IiiHHIIiiII", 40, 5, -3 if top_down else 3, 1, bits, 0, 0, 0, 0, 0, 0)
    data = header + table + (stored if top_down else stored[::-1]).tobytes()
    np.testing.assert_array_equal(decode(data), x)


def test_pnm_in_text_and_in_bytes() -> None:
    x, grey = image(2, 3), image(2, 3, 1)
    np.testing.assert_array_equal(decode(b"P6\n# made by hand\n3 2\n255\n" + x.tobytes()), x)
    text = " ".join(map(str, x.ravel().tolist()))
    np.testing.assert_array_equal(decode(f"P3 3 2 255\n{text}".encode()), x)
    np.testing.assert_array_equal(decode(b"P5 3 2 255 " + grey.tobytes()), grey.repeat(3, -1))
    np.testing.assert_array_equal(decode(b"P5 2 1 1\n\x00\x01", "Grayscale")[0, :, 0], [0, 255])


@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tiff_in_strips_of_either_byte_order(channels: int, order: str, deflated: bool) -> None:
    x = image(5, 4, channels)
    strips = [x[:3].tobytes(), x[3:].tobytes()]
    if deflated:
        strips = [zlib.compress(s) for s in strips]
    start, data = [], b"II*\0" if order == "<" else b"MM\0*"
    body = b""
    for strip in strips:
        start.append(8 + len(body))
        body += strip
    arrays = {273: start, 279: [len(s) for s in strips], 258: [8] * channels}
    single = {256: 4, 257: 5, 259: 8 if deflated else 1, 262: 1 if channels == 1 else 2, 277: channels, 284: 1}
    entries = []
    for tag in sorted([*arrays, *single]):
        values = arrays.get(tag) or [single[tag]]
        packed = struct.pack(f"{order}{len(values)}I", *values)
        if len(packed) > 4:
            place, body = 8 + len(body), body + packed
            packed = struct.pack(order + "I", place)
        entries.append(struct.pack(order + "HHI", tag, 4, len(values)) + packed)
    directory = struct.pack(order + "H", len(entries)) + b"".join(entries) + b"\0" * 4
    data += struct.pack(order + "I", 8 + len(body)) + body + directory
    expected = x.repeat(3, -1) if channels == 1 else x[..., :3]
    np.testing.assert_array_equal(decode(data), expected)


# --- JPEG ------------------------------------------------------------------------------------------------------------


def dct_matrix() -> np.ndarray:
    k, n = np.arange(8)[:, None], np.arange(8)
    return np.where(k == 0, np.sqrt(0.5), 1) * np.cos((2 * n + 1) * k * np.pi / 16) / 2


ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, (i // 8 if (i // 8 + i % 8) % 2 else i % 8)))


class JpegWriter:
    """Quantises by 1 and codes every symbol in eight bits: large, and exact to about one level."""

    def __init__(
        self, planes: list[np.ndarray], factors: list[tuple[int, int]], size: tuple[int, int], restart: int
    ) -> None:
        self.bits = ""
        self.out = b""
        height, width = size
        across, down = max(h for h, _ in factors), max(v for _, v in factors)
        mcus = (-(-height // (8 * down)), -(-width // (8 * across)))
        blocks = [self.blocks(p, (mcus[0] * v, mcus[1] * h)) for p, (h, v) in zip(planes, factors)]
        previous = [0] * len(planes)
        for number, (row, column) in enumerate(np.ndindex(*mcus)):
            if restart and number and number % restart == 0:
                self.flush()
                self.out += bytes([0xFF, 0xD0 + (number // restart - 1) % 8])
                previous = [0] * len(planes)
            for i, (h, v) in enumerate(factors):
                for y, x in np.ndindex(v, h):
                    previous[i] = self.block(blocks[i][row * v + y, column * h + x], previous[i])
        self.flush()
        table = bytes([*[0] * 7, 255, *[0] * 8]) + bytes(range(255))
        parts = b"".join(bytes([i, h << 4 | v, 0]) for i, (h, v) in enumerate(factors))
        scan = b"".join(bytes([i, 0]) for i in range(len(planes)))
        self.data = b"\xff\xd8" + b"".join([
            self.segment(0xDB, b"\0" + b"\1" * 64),
            self.segment(0xC0, struct.pack(">BHHB", 8, height, width, len(planes)) + parts),
            self.segment(0xC4, b"\x00" + table + b"\x10" + table),
            self.segment(0xDD, struct.pack(">H", restart)),
            self.segment(0xDA, bytes([len(planes)]) + scan + b"\x00\x3f\x00"),
        ]) + self.out + b"\xff\xd9"  # fmt: skip

    @staticmethod
    def segment(marker: int, body: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body

    @staticmethod
    def blocks(plane: np.ndarray, count: tuple[int, int]) -> np.ndarray:
        full = np.pad(plane, [(0, 8 * n - s) for n, s in zip(count, plane.shape)], mode="edge") - 128.0
        tiles = full.reshape(count[0], 8, count[1], 8).transpose(0, 2, 1, 3)
        c = dct_matrix()
        return np.rint(c @ tiles @ c.T).astype(int).reshape(*count, 64)[..., ZIGZAG]

    def block(self, coefficients: np.ndarray, previous: int) -> int:
        self.number(0, int(coefficients[0]) - previous)
        last = max(np.flatnonzero(coefficients[1:]), default=-1) + 1
        run = 0
        for value in coefficients[1 : last + 1].tolist():
            if value == 0:
                run += 1
                continue
            while run > 15:
                self.bits += f"{0xF0:08b}"
                run -= 16
            self.number(run, value)
            run = 0
        if last < 63:
            self.bits += f"{0:08b}"
        return int(coefficients[0])

    def number(self, run: int, value: int) -> None:
        size = abs(value).bit_length()
        self.bits += f"{run << 4 | size:08b}"
        if size:
            self.bits += f"{value if value > 0 else value + (1 << size) - 1:0{size}b}"

    def flush(self) -> None:
        self.bits += "1" * (-len(self.bits) % 8)
        raw = bytes(int(self.bits[i : i + 8], 2) for i in range(0, len(self.bits), 8))
        self.out += raw.replace(b"\xff", b"\xff\x00")
        self.bits = ""


def smooth(height: int, width: int, phase: float) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return 128 + 60 * np.sin(0.07 * x + phase) + 40 * np.cos(0.09 * y - phase)


def shrunk(plane: np.ndarray, down: int, across: int) -> np.ndarray:
    padded = np.pad(plane, [(0, -plane.shape[0] % down), (0, -plane.shape[1] % across)], mode="edge")
    return padded.reshape(padded.shape[0] // down, down, -1, across).mean((1, 3))


@pytest.mark.parametrize("restart", [0, 2])
@pytest.mark.parametrize("size", [(32, 32), (19, 37), (1, 1), (8, 50)])
@pytest.mark.parametrize("factors", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
def test_jpeg_of_every_chroma_sampling_and_size(factors: tuple[int, int], size: tuple[int, int], restart: int) -> None:
    across, down = factors
    full = [smooth(*size, phase) for phase in (0.0, 1.0, 2.0)]
    planes = [full[0], *[shrunk(p, down, across) for p in full[1:]]]
    data = JpegWriter(planes, [factors, (1, 1), (1, 1)], size, restart).data
    luma, blue, red = full[0], full[1] - 128, full[2] - 128
    rgb = np.stack([luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue], -1)
    difference = np.abs(decode(data) - np.clip(rgb, 0, 255))
    # Chroma that was averaged over pixels comes back as smooth as it can.
    assert difference.max() <= (4 if factors == (1, 1) else 20)
    assert difference.mean() < (1.5 if factors == (1, 1) else 4)


def test_grey_jpeg() -> None:
    plane = smooth(11, 21, 0.5)
    data = JpegWriter([plane], [(1, 1)], plane.shape, 0).data
    result = decode(data, "Grayscale")
    assert np.abs(result[..., 0] - plane).max() <= 2
    np.testing.assert_array_equal(decode(data), result.repeat(3, -1))


# --- what is refused -------------------------------------------------------------------------------------------------


def test_damaged_and_unknown_files_are_errors() -> None:
    good = JpegWriter([smooth(9, 9, 0.0)], [(1, 1)], (9, 9), 0).data
    for data in (
        good[:40],
        good[:150],
        good[:-60],
        b"\xff\xd8\xff",
        png(image(2, 2).reshape(2, -1), 2, 8, 2, [0, 0], 3)[:60],
    ):
        with pytest.raises(HostError, match=r"damaged|no image"):
            decode(data)
    with pytest.raises(HostError, match="progressive"):
        decode(good.replace(b"\xff\xc0", b"\xff\xc2", 1))
    with pytest.raises(HostError, match="WebP"):
        decode(b"RIFF....WEBPVP8 ")
    with pytest.raises(HostError, match="pixel_format"):
        decode(good, "CMYK")
    for data in (b"", b"BM", b"P6", b"P6 3 2 0 ", b"II*\0\x08\0\0\0"):
        with pytest.raises(HostError):
            decode(data)
