"""Weights of few bits: every packing, scale and zero point."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.frontend.checks import floats, ints
from tests.frontend.microsoft.checks import check_node, node_model, typed
from tilestitch.compiler.frontend import ConversionError, import_model


def packed_weights(width: int, depth: int, bits: int, block: int, seed: int = 0) -> np.ndarray:
    blocks = -(-depth // block)
    return np.random.default_rng(seed).integers(0, 256, (width, blocks, block * bits // 8)).astype(np.uint8)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "floats"])
@pytest.mark.parametrize("depth", [32, 48, 40, 37])
@pytest.mark.parametrize("shape", [(3,), (2, 1)])
def test_matmul(bits: int, zeros: str, depth: int, shape: tuple[int, ...]) -> None:
    block, width = 16, 5
    blocks = -(-depth // block)
    scales = np.abs(floats(width, blocks, seed=1)) * np.float32(0.1)
    rng = np.random.default_rng(2)
    zero = {
        "none": None,
        "packed": rng.integers(0, 256, (width, -(-blocks * bits // 8))).astype(np.uint8),
        "floats": floats(width, blocks, seed=3) + np.float32(2 ** (bits - 1)),
    }[zeros]
    given = [floats(*shape, depth), packed_weights(width, depth, bits, block), scales, zero]
    attrs = {"K": depth, "N": width, "bits": bits, "block_size": block, "accuracy_level": 1}
    # ONNX Runtime's kernel takes zero points that are floats of 4 bits only.
    reference = with_float_zeros if zeros == "floats" and bits != 4 else None
    check_node("MatMulNBits", given, attrs, constants=(1, 2, 3), reference=reference)


def with_float_zeros(x: np.ndarray, packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    bits = packed.shape[2] * 8 // 16
    parts = np.unpackbits(packed, axis=2, bitorder="little").reshape(*packed.shape[:2], 16, bits)
    codes = (parts << np.arange(bits)).sum(-1)
    weights = (codes - zeros[..., None]) * scales[..., None]
    return (x @ weights.reshape(len(packed), -1)[:, : x.shape[-1]].T).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("constant", [True, False])
def test_a_bias(dtype: str, constant: bool) -> None:
    scales = np.abs(floats(5, 2, seed=1, dtype=dtype)) * np.asarray(0.1, dtype)
    given = [floats(3, 32, dtype=dtype), packed_weights(5, 32, 4, 16), scales, None, None, floats(5, dtype=dtype)]
    attrs = {"K": 32, "N": 5, "bits": 4, "block_size": 16}
    check_node("MatMulNBits", given, attrs, constants=(1, 2, 5) if constant else ())


def test_groups_by_index() -> None:
    depth, block, width = 32, 16, 5
    groups = np.random.default_rng(4).integers(0, 2, depth).astype(np.int32)
    x, packed, scales = floats(3, depth), packed_weights(width, depth, 4, block), np.abs(floats(width, 2, seed=1))
    attrs = {"K": depth, "N": width, "bits": 4, "block_size": block}
    check_node("MatMulNBits", [x, packed, scales, None, groups], attrs, constants=(1, 2, 4))

    def reference(*_: Any) -> np.ndarray:
        """ONNX Runtime's kernel leaves zero points out here, its documentation does not."""
        flat = packed.reshape(width, -1)
        codes = np.stack([flat & 15, flat >> 4], -1).reshape(width, depth).astype(np.float32)
        by_block = np.stack([zeros & 15, zeros >> 4], -1).reshape(width, 2)
        return x @ ((codes - by_block[:, groups]) * scales[:, groups]).T

    zeros = np.random.default_rng(2).integers(0, 256, (width, 1)).astype(np.uint8)
    check_node("MatMulNBits", [x, packed, scales, zeros, groups], attrs, constants=(1, 2, 3, 4), reference=reference)


def test_weights_that_are_left_out() -> None:
    given = [floats(3, 32), np.zeros((5, 2, 0), np.uint8), np.zeros((5, 2), np.float32), None, None, floats(5)]
    attrs = {"K": 32, "N": 5, "bits": 4, "block_size": 16}
    wanted = np.broadcast_to(floats(5), (3, 5))
    check_node("MatMulNBits", given, attrs, constants=(1, 2), reference=lambda *_: wanted)


@pytest.mark.parametrize(
    ("attrs", "message"), [({"weight_prepacked": 1}, "weight_prepacked"), ({"bits": 3}, "bits is 3")]
)
def test_other_packings_are_refused(attrs: dict[str, int], message: str) -> None:
    given = [floats(3, 32), packed_weights(5, 32, 4, 16), floats(5, 2)]
    base = {"K": 32, "N": 5, "bits": 4, "block_size": 16}
    model = typed(node_model("MatMulNBits", given, base | attrs), [floats(3, 5)])
    with pytest.raises(ConversionError, match=message):
        import_model(model)


# -- tables --------------------------------------------------------------------------------------------------------

INDICES = {"vector": ints(2, 0, -1), "matrix": ints([1, 3], [0, 0], dtype="int32"), "scalar": ints(1).reshape(())}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("indices", INDICES)
def test_rows_of_bytes(bits: int, zeros: bool, indices: str) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (5, 32 * bits // 8)).astype(np.uint8)
    scales = np.abs(floats(5, 2, seed=1))
    zero = rng.integers(0, 256, (5, 2 * bits // 8)).astype(np.uint8) if zeros else None
    attrs = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    given = [data, INDICES[indices], scales, zero]
    check_node("GatherBlockQuantized", given, attrs, constants=(0, 2, 3))


@pytest.mark.parametrize("dtype", ["uint4", "int4"])
@pytest.mark.parametrize(("gather", "quantize"), [(0, 1), (1, 0), (0, 2), (2, 1), (-1, -1)])
@pytest.mark.parametrize("zeros", [False, True])
def test_tables_of_four_bits(dtype: str, gather: int, quantize: int, zeros: bool) -> None:
    kind = getattr(ml_dtypes, dtype)
    rng = np.random.default_rng(0)
    shape = [3, 5, 4]
    shape[quantize] = 40

    def codes(sizes: list[int]) -> np.ndarray:
        low, high = (0, 16) if dtype == "uint4" else (-8, 8)
        return rng.integers(low, high, sizes).astype(kind)

    blocks = [3 if i == quantize % 3 else size for i, size in enumerate(shape)]
    given = [codes(shape), ints(2, 0), np.abs(floats(*blocks, seed=1)), codes(blocks) if zeros else None]
    attrs = {"block_size": 16, "gather_axis": gather, "quantize_axis": quantize}
    check_node("GatherBlockQuantized", given, attrs, constants=(0, 2, 3))


def test_rows_out_of_range_are_zero() -> None:
    given = [packed_weights(5, 32, 8, 32)[:, 0], ints([5, 1], [-6, -5]), np.abs(floats(5, 2, seed=1))]
    attrs = {"bits": 8, "block_size": 16}
    check_node("GatherBlockQuantized", given, attrs, constants=(0, 2))


@pytest.mark.parametrize("scales", [(5, 2), (1, 2), (1, 1)])
def test_tables_of_small_floats(scales: tuple[int, int]) -> None:
    data = floats(5, 32).astype(ml_dtypes.float8_e4m3fn)
    given = [data, ints(4, 0), np.abs(floats(*scales, seed=1))]
    check_node("GatherBlockQuantized", given, {"block_size": 16 if scales[1] == 2 else 0}, constants=(0, 2))


# -- bitsandbytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("width", "depth"), [(5, 32), (6, 24)])
def test_four_bit_floats(kind: int, width: int, depth: int) -> None:
    block = 16
    data = np.random.default_rng(0).integers(0, 256, (width * depth + 1) // 2).astype(np.uint8)
    scales = np.abs(floats(-(-width * depth // block), seed=1))
    attrs: dict[str, Any] = {"K": depth, "N": width, "block_size": block, "quant_type": kind}
    check_node("MatMulBnb4", [floats(2, 3, depth), data, scales], attrs, constants=(1, 2))
