"""GEMMs with gates: the columns u, H + u, 2 H + u... of a row are a unit, and are brought together.

The columns of such a GEMM are ordered anew as its constant matrix is packed, gate after gate of a unit, unit after
unit. A thread that has neighbouring columns in registers or shared memory thus has whole units, and runs the epilogue
with them; nothing else in a template knows of gates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilestitch.compiler.ir.sizes import surely
from tilestitch.passes.plan.parts import Roles

FEW_ROWS = 8
"""Rows of a GEMM that is computed column by column."""
PERIOD = 16
"""Columns that begin with a unit, whatever the number of gates: every tile is a multiple of so many columns wide."""


@dataclass(frozen=True)
class Units:
    """`width` units of `gates` columns each. As many as fit in `period` columns lie there; what is left has zeros.

    Where there are no gates, every column is a unit.
    """

    gates: int
    width: int
    period: int

    @staticmethod
    def plain(columns: int) -> Units:
        """Of a GEMM without gates."""
        return Units(1, columns, 1)

    @property
    def together(self) -> int:
        """Units of a period."""
        return self.period // self.gates

    @property
    def dense(self) -> bool:
        """Whether no column is left over between units."""
        return self.together * self.gates == self.period

    @property
    def columns(self) -> int:
        """Of the whole GEMM, some of which may belong to no unit."""
        return -(-self.width // self.together) * self.period

    def within(self, columns: int) -> int:
        """Units of so many columns: a multiple of the period."""
        assert columns % self.period == 0, (self, columns)
        return columns // self.period * self.together

    def first(self, column: Any) -> Any:
        """Return the unit that begins a period, which begins at a column."""
        return column if self.gates == 1 else column // self.period * self.together

    def column(self, unit: Any) -> Any:
        """Return the first column of a unit."""
        if self.dense:
            return unit if self.gates == 1 else unit * self.gates
        return unit // self.together * self.period + unit % self.together * self.gates

    def arrange(self, matrix: np.ndarray) -> np.ndarray:
        """Return the columns of `matrix` [k, gates * width] in their new order, [k, columns]."""
        depth, periods = matrix.shape[0], self.columns // self.period
        units = np.zeros((depth, periods * self.together, self.gates), matrix.dtype)
        units[:, : self.width] = matrix.reshape(depth, self.gates, self.width).swapaxes(1, 2)
        used = self.together * self.gates
        result = np.zeros((depth, periods, self.period), matrix.dtype)
        result[..., :used] = units.reshape(depth, periods, used)
        return result.reshape(depth, self.columns)


def units_of(roles: Roles) -> Units | None:
    """Return how the columns of a contraction's result are ordered anew; None if it has no gates."""
    width = roles.gate_width
    if width is None:
        return None
    assert roles.anchor is not None
    *rows, columns = roles.anchor.output.shape
    gates = columns // width
    # Reading the matrix is what takes the time with few rows: no column may be empty.
    return Units(gates, width, gates if surely(lambda: prod(rows) <= FEW_ROWS) else PERIOD)
