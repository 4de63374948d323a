"""Power: a board whose chip could do more than its power allows lowers its clock.

energy per operation ~ process node; sustained operations per second = usable board power / energy per operation.
Sources: TSMC's announcements (N7 takes 60 % less power than N16 at the same speed, N5 30 % less than N7). That 12 nm
takes what 16 nm takes is measured: GEMMs of two boards whose power limits them, P4 and T4, agree within a tenth.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NODES = ((3.0, 0.20), (4.0, 0.26), (5.0, 0.28), (7.0, 0.40), (12.0, 1.0), (16.0, 1.0), (28.0, 2.0))
"""Nodes in nanometres, by their foundry's name, and energy of an operation relative to one at 16 nm: 12 nm is a denser
library of the same transistors.
"""
BOARD_W = 20.0
"""Of a board's power that its chip never gets: memory at rest, regulators, leakage. A judgement."""


def energy_scale(process_nm: Any) -> Any:
    """Energy of an operation relative to the same one at 12 or 16 nm; between nodes, a power law."""
    names, energies = np.log(np.array(NODES)).T
    return np.exp(np.interp(np.log(process_nm), names, energies))


def slowdown(picojoules: Any, flops_per_us: Any, tdp_w: Any, process_nm: Any) -> Any:
    """Return how many times longer arithmetic takes than at the boost clock; below 1 where power is no limit.

    picojoules: of an operation, at 16 nm, with what its operands' way to it costs.
    """
    watts_at_boost = picojoules * energy_scale(process_nm) * flops_per_us * 1e-6
    return watts_at_boost / np.maximum(1.0, np.subtract(tdp_w, BOARD_W))


def throttled(duration_us: Any, reaction_us: Any) -> Any:
    """Return the share of a kernel's time in which power limits it: short ones are over before the board reacts."""
    return duration_us / (duration_us + reaction_us)
