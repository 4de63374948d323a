"""GEMMs with gates: the columns u, H + u, 2 H + u... of a row form a unit, and are made adjacent.

Packing the constant matrix of such a GEMM reorders its columns: gate by gate within a unit, unit by unit. A thread that
has neighbouring columns in registers or shared memory thus has whole units, and runs the epilogue on them; nothing else
in a template knows about gates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilestitch.compiler.ir.sizes import surely
from tilestitch.passes.plan.parts import Roles

FEW_ROWS = 8
"""Most rows of a GEMM that is computed column by column."""
PERIOD = 16
"""Columns per period, which begins with a unit for any number of gates: tile widths are multiples of it."""


@dataclass(frozen=True)
class Units:
    """`width` units of `gates` columns each. Every `period` columns hold as many units as fit; the remainder is filled
    with zeros.

    Where there are no gates, every column is a unit.
    """

    gates: int
    width: int
    period: int

    @staticmethod
    def plain(columns: int) -> Units:
        """Return the units of a GEMM without gates."""
        return Units(1, columns, 1)

    @property
    def together(self) -> int:
        """Units per period."""
        return self.period // self.gates

    @property
    def dense(self) -> bool:
        """Whether no column is left over between units."""
        return self.together * self.gates == self.period

    @property
    def columns(self) -> int:
        """Columns of the whole GEMM, some of which may belong to no unit."""
        return -(-self.width // self.together) * self.period

    def within(self, columns: int) -> int:
        """Return the units in `columns` columns, a multiple of the period."""
        assert columns % self.period == 0, (self, columns)
        return columns // self.period * self.together

    def first(self, column: Any) -> Any:
        """Return the first unit of the period that begins at a column."""
        return column if self.gates == 1 else column // self.period * self.together

    def column(self, unit: Any) -> Any:
        """Return the first column of a unit."""
        if self.dense:
            return unit if self.gates == 1 else unit * self.gates
        return unit // self.together * self.period + unit % self.together * self.gates

    def arrange(self, matrix: np.ndarray) -> np.ndarray:
        """Return the columns of `matrix` [k, gates * width] in unit order, as [k, columns]."""
        depth, periods = matrix.shape[0], self.columns // self.period
        units = np.zeros((depth, periods * self.together, self.gates), matrix.dtype)
        units[:, : self.width] = matrix.reshape(depth, self.gates, self.width).swapaxes(1, 2)
        used = self.together * self.gates
        result = np.zeros((depth, periods, self.period), matrix.dtype)
        result[..., :used] = units.reshape(depth, periods, used)
        return result.reshape(depth, self.columns)


def units_of(roles: Roles) -> Units | None:
    """Return the units of a contraction's result; None if it has no gates."""
    width = roles.gate_width
    if width is None:
        return None
    assert roles.anchor is not None
    *rows, columns = roles.anchor.output.shape
    gates = columns // width
    # With few rows reading the matrix dominates: no column may be empty.
    return Units(gates, width, gates if surely(lambda: prod(rows) <= FEW_ROWS) else PERIOD)
