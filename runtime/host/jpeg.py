"""Decoder of baseline JPEG, bit-exact to libjpeg: same integer DCT, smooth chroma and colour tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilestitch.runtime.errors import HostError

_ZIGZAG = np.array([
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61,
    54, 47, 55, 62, 63,
])  # fmt: skip

HuffmanTable = dict[tuple[int, int], int]
"""(length in bits, code) -> symbol."""


@dataclass
class _Component:
    """One colour plane. `columns` and `rows` count its blocks, rounded up to whole MCUs."""

    horizontal: int
    vertical: int
    quantization: int
    dc_table: int = 0
    ac_table: int = 0
    columns: int = 0
    rows: int = 0
    blocks: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    previous_dc: int = 0


@dataclass
class _Frame:
    height: int
    width: int
    components: dict[int, _Component]

    @property
    def sampling(self) -> tuple[int, int]:
        """The largest horizontal and vertical sampling factors."""
        parts = self.components.values()
        return max(c.horizontal for c in parts), max(c.vertical for c in parts)


def decode_jpeg(data: bytes) -> np.ndarray:
    """Return the image as uint8 [height, width, 1 or 3] (grey or RGB).

    Raises `HostError` for data that is damaged, progressive, arithmetic-coded, or not of 8 bits and 1 or 3 components.
    """
    try:
        return _decode(data)
    except (IndexError, KeyError) as error:
        raise HostError("the JPEG data is cut off or damaged") from error


def _decode(data: bytes) -> np.ndarray:
    quantization: dict[int, np.ndarray] = {}
    tables: dict[int, HuffmanTable] = {}
    frame: _Frame | None = None
    restart = 0
    for marker, body, end in _segments(data):
        if marker == 0xDB:
            _read_quantization(body, quantization)
        elif marker == 0xC4:
            _read_huffman(body, tables)
        elif marker in (0xC0, 0xC1):
            frame = _read_frame(body)
        elif 0xC2 <= marker <= 0xCF and marker not in (0xC8, 0xCC):
            raise HostError(
                "ImageDecoder reads baseline JPEG only; this one is progressive, lossless or arithmetic-coded"
            )
        elif marker == 0xDD:
            restart = int.from_bytes(body[:2], "big")
        elif marker == 0xDA:
            if frame is None:
                break
            _read_scan(body, data[end:], frame, tables, restart)
            return _assemble(frame, quantization)
    raise HostError("the JPEG data holds no image")


def _segments(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield marker, contents and end of each segment up to the first scan."""
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            raise HostError("the JPEG data is cut off or damaged")
        if data[at + 1] == 0xFF:
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], data[at + 4 : end], end
        at = end


def _read_quantization(body: bytes, quantization: dict[int, np.ndarray]) -> None:
    while body:
        wide, number = body[0] >> 4, body[0] & 15
        size = 128 if wide else 64
        values = np.frombuffer(body[1 : 1 + size], ">u2" if wide else np.uint8).astype(np.int32)
        table = np.empty(64, np.int32)
        table[_ZIGZAG] = values
        quantization[number] = table
        body = body[1 + size :]


def _read_huffman(body: bytes, tables: dict[int, HuffmanTable]) -> None:
    """Read tables by number, with 16 added for those of AC coefficients; codes of one length count up."""
    while body:
        counts, at, code = body[1:17], 17, 0
        table: HuffmanTable = {}
        for length, count in enumerate(counts, 1):
            for symbol in body[at : at + count]:
                table[length, code] = symbol
                code += 1
            at += count
            code <<= 1
        tables[body[0]] = table
        body = body[at:]


def _read_frame(body: bytes) -> _Frame:
    height, width, count = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big"), body[5]
    if body[0] != 8 or count not in (1, 3) or not height or not width:
        raise HostError(f"ImageDecoder reads JPEG of 8 bits and 1 or 3 components, not of {body[0]} bits and {count}")
    parts = [body[6 + 3 * i : 9 + 3 * i] for i in range(count)]
    components = {p[0]: _Component(p[1] >> 4, p[1] & 15, p[2]) for p in parts}
    if count == 1:
        # A single component is not interleaved: its sampling factors do not apply.
        components = {p[0]: _Component(1, 1, p[2]) for p in parts}
    frame = _Frame(height, width, components)
    across, down = frame.sampling
    for component in components.values():
        component.columns = -(-width // (8 * across)) * component.horizontal
        component.rows = -(-height // (8 * down)) * component.vertical
        component.blocks = np.zeros((component.rows, component.columns, 64), np.int32)
    return frame


# --- entropy-coded data ----------------------------------------------------------------------------------------------


class _Bits:
    """Reader of bits, most significant first; stuffed zero bytes are skipped, restart markers found by `restart`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.buffer = 0
        self.count = 0

    def read(self, count: int) -> int:
        while self.count < count:
            byte = self.data[self.at]
            if byte == 0xFF:
                if self.data[self.at + 1]:
                    raise HostError("the JPEG data is cut off or damaged: a marker where pixels should be")
                self.at += 1
            self.at += 1
            self.buffer = (self.buffer << 8 | byte) & 0xFFFFFFFF
            self.count += 8
        self.count -= count
        return self.buffer >> self.count & ((1 << count) - 1)

    def symbol(self, table: HuffmanTable) -> int:
        code = 0
        for length in range(1, 17):
            code = code << 1 | self.read(1)
            if (length, code) in table:
                return table[length, code]
        raise HostError("the JPEG data is damaged: no such Huffman code")

    def value(self, size: int) -> int:
        """Return a signed number of `size` bits; those without the highest bit are negative."""
        if size == 0:
            return 0
        bits = self.read(size)
        return bits if bits >> (size - 1) else bits - (1 << size) + 1

    def restart(self) -> None:
        """Skip past the next restart marker."""
        while not (self.data[self.at] == 0xFF and 0xD0 <= self.data[self.at + 1] <= 0xD7):
            self.at += 1
        self.at += 2
        self.buffer = self.count = 0


def _read_scan(body: bytes, data: bytes, frame: _Frame, tables: dict[int, HuffmanTable], restart: int) -> None:
    if body[0] != len(frame.components):
        raise HostError("ImageDecoder reads JPEG whose components are interleaved in one scan only")
    parts = []
    for i in range(body[0]):
        component = frame.components[body[1 + 2 * i]]
        component.dc_table, component.ac_table = body[2 + 2 * i] >> 4, body[2 + 2 * i] & 15
        parts.append(component)
    bits = _Bits(data)
    first = parts[0]
    mcus = first.columns // first.horizontal * (first.rows // first.vertical)
    for mcu in range(mcus):
        if restart and mcu and mcu % restart == 0:
            bits.restart()
            for component in parts:
                component.previous_dc = 0
        for component in parts:
            _read_mcu(bits, component, mcu, tables)


def _read_mcu(bits: _Bits, component: _Component, mcu: int, tables: dict[int, HuffmanTable]) -> None:
    row, column = divmod(mcu, component.columns // component.horizontal)
    for y in range(component.vertical):
        for x in range(component.horizontal):
            block = component.blocks[row * component.vertical + y, column * component.horizontal + x]
            _read_block(bits, component, block, tables[component.dc_table], tables[16 + component.ac_table])


def _read_block(bits: _Bits, component: _Component, block: np.ndarray, dc: HuffmanTable, ac: HuffmanTable) -> None:
    component.previous_dc += bits.value(bits.symbol(dc))
    block[0] = component.previous_dc
    k = 1
    while k < 64:
        run, size = divmod(bits.symbol(ac), 16)
        if size:
            k += run
            block[_ZIGZAG[k]] = bits.value(size)
            k += 1
        elif run == 15:
            k += 16
        else:
            break


# --- from coefficients to pixels -------------------------------------------------------------------------------------


def _assemble(frame: _Frame, quantization: dict[int, np.ndarray]) -> np.ndarray:
    across, down = frame.sampling
    planes = []
    for component in frame.components.values():
        samples = _inverse_dct(component.blocks * quantization[component.quantization])
        plane = samples.transpose(0, 2, 1, 3).reshape(component.rows * 8, component.columns * 8)
        height = -(-frame.height * component.vertical // down)
        width = -(-frame.width * component.horizontal // across)
        plane = _upsample(plane[:height, :width], down // component.vertical, across // component.horizontal)
        planes.append(plane[: frame.height, : frame.width])
    if len(planes) == 1:
        return planes[0][..., None].astype(np.uint8)
    return _to_rgb(*planes)


def _inverse_dct(coefficients: np.ndarray) -> np.ndarray:
    """Transform blocks [rows, columns, 64] to samples 0 to 255 [rows, columns, 8, 8]: Loeffler's DCT in 13-bit fixed
    point.
    """
    blocks = coefficients.reshape(*coefficients.shape[:2], 8, 8).astype(np.int64)
    first = _dct_pass(np.moveaxis(blocks, 2, 0), 11)
    second = _dct_pass(np.moveaxis(np.moveaxis(first, 0, 2), 3, 0), 18)
    return np.clip(np.moveaxis(second, 0, 3) + 128, 0, 255)


def _dct_pass(x: np.ndarray, shift: int) -> np.ndarray:
    """Transform along the first axis; the result is divided by 2^shift, rounded."""
    common = (x[2] + x[6]) * 4433
    even2, even3 = common - x[6] * 15137, common + x[2] * 6270
    even0, even1 = (x[0] + x[4]) << 13, (x[0] - x[4]) << 13
    even = (even0 + even3, even1 + even2, even1 - even2, even0 - even3)
    z1, z2, z3, z4 = x[7] + x[1], x[5] + x[3], x[7] + x[3], x[5] + x[1]
    z5 = (z3 + z4) * 9633
    z1, z2, z3, z4 = z1 * -7373, z2 * -20995, z3 * -16069 + z5, z4 * -3196 + z5
    odd = (x[1] * 12299 + z1 + z4, x[3] * 25172 + z2 + z3, x[5] * 16819 + z2 + z4, x[7] * 2446 + z1 + z3)
    half = 1 << (shift - 1)
    low = [(e + o + half) >> shift for e, o in zip(even, odd, strict=True)]
    high = [(e - o + half) >> shift for e, o in zip(even, odd, strict=True)]
    return np.stack([*low, *reversed(high)])


def _upsample(plane: np.ndarray, down: int, across: int) -> np.ndarray:
    """Return a plane at full size. Factors of two interpolate, as libjpeg's "fancy" upsampling does; others repeat."""
    if (down, across) == (2, 2) and plane.shape[1] > 2:
        left, right = _neighbours(_interleave(*_neighbours(plane, 0), 0), 1)
        return _interleave((left + 8) >> 4, (right + 7) >> 4, 1)
    if (down, across) == (1, 2) and plane.shape[1] > 2:
        left, right = _neighbours(plane, 1)
        return _interleave((left + 1) >> 2, (right + 2) >> 2, 1)
    if (down, across) == (2, 1):
        above, below = _neighbours(plane, 0)
        return _interleave((above + 1) >> 2, (below + 2) >> 2, 0)
    return plane.repeat(down, 0).repeat(across, 1)


def _neighbours(plane: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return three times each sample plus the one before, and plus the one after; at the ends plus itself."""
    size = plane.shape[axis]
    before = np.take(plane, np.maximum(np.arange(size) - 1, 0), axis)
    after = np.take(plane, np.minimum(np.arange(size) + 1, size - 1), axis)
    return 3 * plane + before, 3 * plane + after


def _interleave(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    shape = [2 * n if i == axis else n for i, n in enumerate(a.shape)]
    return np.stack([a, b], axis + 1).reshape(shape)


def _to_rgb(y: np.ndarray, blue: np.ndarray, red: np.ndarray) -> np.ndarray:
    cb, cr = blue - 128, red - 128
    parts: Sequence[np.ndarray] = (
        y + ((91881 * cr + 32768) >> 16),
        y + ((-22554 * cb - 46802 * cr + 32768) >> 16),
        y + ((116130 * cb + 32768) >> 16),
    )
    return np.clip(np.stack(parts, -1), 0, 255).astype(np.uint8)
