"""Constant operands in kernel-specific layouts, as arguments of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.codegen.launch import PackedArg
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.access.packed import PackedLayout, packed_layouts
from tilestitch.passes.plan.access.strided import Strided


def packed_weights(group: Anchored) -> dict[Value, tuple[PackedArg, Strided]]:
    """Return the anchor's weights as packed arguments and their layouts; nothing if they stay unpacked."""
    trans_b = bool(group.anchor.attrs.get("trans_b"))
    return {
        value: (PackedArg(value.name, layout.key, _Arrange(layout, trans_b)), layout.memory)
        for value, layout in packed_layouts(group).items()
    }


class _Arrange:
    """Function that puts a constant into a layout."""

    def __init__(self, layout: PackedLayout, trans_b: bool) -> None:
        self.layout, self.trans_b = layout, trans_b

    def __call__(self, data: Any) -> Any:
        layout = self.layout
        if layout.codes is not None:
            return layout.codes.arrange(data)
        if layout.units is None:
            return np.ascontiguousarray(np.moveaxis(data, -1, layout.rows_at))
        matrix = layout.units.arrange(data.T if self.trans_b else data)
        return np.ascontiguousarray(matrix.T if layout.along_k else matrix)
