"""Blockwise-quantised weights as panels: where each byte lies."""

from __future__ import annotations

import numpy as np
import pytest

from tilestitch.codegen.cpu.contraction import panels
from tilestitch.codegen.cpu.contraction.panels import pack
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.passes.plan.cpu.packing import BlockPacking

COLUMNS, LANES = 32, 16


def packing(form: BlockFormat, width: int, halved: bool) -> BlockPacking:
    return BlockPacking(1, form.depth, width, COLUMNS, "uint8", form=form, lanes=LANES, halved=halved)


def weights_of(form: BlockFormat, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (width, form.blocks, form.block_bytes)).astype(np.uint8)


@pytest.mark.parametrize(
    ("codes", "halved"), [("int4", False), ("int4", True), ("nf4", False), ("nf4", True), ("int8", False)]
)
def test_words_lie_by_step_and_column(codes: str, halved: bool) -> None:
    form = BlockFormat(codes, 32, "float32", zeros=False, depth=70)
    width = COLUMNS + 5
    weights, packed = weights_of(form, width), pack(weights_of(form, width), packing(form, width, halved))
    for column, block, word in [(0, 0, 0), (31, 2, form.words - 1), (36, 1, 2)]:
        panel, place = divmod(column, COLUMNS)
        stored = weights[column, block, 4 * word : 4 * word + 4].tolist()
        nibbles = [half for byte in stored for half in (byte & 15, byte >> 4)]
        if codes == "int4":  # from two's complement to an offset
            nibbles = [nibble ^ 8 for nibble in nibbles]
        if halved:
            wanted = [nibbles[i] | nibbles[i + 4] << 4 for i in range(4)]
        else:
            wanted = [nibbles[2 * i] | nibbles[2 * i + 1] << 4 for i in range(4)]
        if codes == "int8":
            wanted = [byte ^ 0x80 for byte in stored]
        start = ((block * form.words + word) * COLUMNS + place) * 4
        assert packed[0, panel, 0, start : start + 4].tolist() == wanted


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("width", [1, 3 * COLUMNS, 7 * COLUMNS + 3])
def test_pieces_do_not_matter(zeros: bool, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    form = BlockFormat("int4", 16, "float16", zeros, depth=50)
    whole = pack(weights_of(form, width), packing(form, width, halved=True))
    monkeypatch.setattr(panels, "PIECE_BYTES", 2 * packing(form, width, halved=True).shape[-1])
    assert np.array_equal(pack(weights_of(form, width), packing(form, width, halved=True)), whole)
