"""Power: a board whose chip could do more than its power allows lowers its clock.

energy per operation ~ process node; sustained operations per second = usable board power / energy per operation.
Sources: TSMC's announcements (N7 takes 60 % less power than N16 at the same speed, N5 30 % less than N7), which the
power law in the node's name fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

REFERENCE_NM = 12.0
NODE_EXPONENT = 1.1
"""(5 / 16) ** 1.1 = 0.28 = 0.4 * 0.7."""
BOARD_W = 20.0
"""Of a board's power that its chip never gets: memory at rest, regulators, leakage. A judgement."""


def energy_scale(process_nm: Any) -> Any:
    """Energy of an operation relative to the same one at 12 nm."""
    return (process_nm / REFERENCE_NM) ** NODE_EXPONENT


def slowdown(picojoules: Any, flops_per_us: Any, tdp_w: Any, process_nm: Any) -> Any:
    """How many times longer arithmetic takes than at the boost clock; below 1 where power is no limit.

    picojoules: of an operation, at 12 nm, with what its operands' way to it costs.
    """
    watts_at_boost = picojoules * energy_scale(process_nm) * flops_per_us * 1e-6
    return watts_at_boost / np.maximum(1.0, np.subtract(tdp_w, BOARD_W))


def throttled(duration_us: Any, reaction_us: Any) -> Any:
    """The share of a kernel's time in which power limits it: short ones are over before the board reacts."""
    return duration_us / (duration_us + reaction_us)
