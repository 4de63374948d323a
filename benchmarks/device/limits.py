"""How far results may be from a reference: of ‖ours − reference‖ / ‖reference‖."""

from __future__ import annotations

from typing import Any

TOLERANCE = {
    "float32": 2e-5, "tf32": 1e-3, "float16": 2e-3, "bfloat16": 1e-2, "int8": 0.0, "uint8": 0.0, "int64": 0.0,
    "e4m3": 2e-5, "e4m3_tf32": 2e-3, "quantised": 1e-2,
}  # fmt: skip
"""A few times what the emulated device shows: sums are in another order, and functions are approximated otherwise.
wgmma's sums of floats of 8 bits are said to have fewer bits on the device. Where floats are rounded to bytes, a last
bit can make one of them another.
"""


def tolerance(entry: dict[str, Any]) -> float:
    """Of a case by its variant, of an operator by its data type."""
    return TOLERANCE[entry["variant"] if "variant" in entry else entry["name"].rpartition(".")[2]]
