"""Power: a board lowers its clock where the chip would exceed the power limit.

energy per operation ~ process node; sustained operations per second = usable board power / energy per operation.
Sources: TSMC's announcements (N7 takes 60 % less power than N16 at the same speed, N5 30 % less than N7). That 12 nm
takes what 16 nm takes is measured: GEMMs of two boards whose power limits them, P4 and T4, agree within a tenth.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NODES = ((3.0, 0.20), (4.0, 0.26), (5.0, 0.28), (7.0, 0.40), (12.0, 1.0), (16.0, 1.0), (28.0, 2.0))
"""Nodes in nanometres, by the foundry's name, and energy per operation relative to 16 nm: 12 nm is a denser library of
the same transistors.
"""
BOARD_W = 20.0
"""Board power that the chip never gets: memory at rest, regulators, leakage. A judgement."""


def energy_scale(process_nm: Any) -> Any:
    """Return the energy per operation relative to 12 or 16 nm; a power law between nodes."""
    names, energies = np.log(np.array(NODES)).T
    return np.exp(np.interp(np.log(process_nm), names, energies))


def slowdown(picojoules: Any, flops_per_us: Any, tdp_w: Any, process_nm: Any) -> Any:
    """Return the slowdown of arithmetic relative to the boost clock; below 1 where power is no limit.

    picojoules: per operation at 16 nm, including the transport of its operands.
    """
    watts_at_boost = picojoules * energy_scale(process_nm) * flops_per_us * 1e-6
    return watts_at_boost / np.maximum(1.0, np.subtract(tdp_w, BOARD_W))


def throttled(duration_us: Any, reaction_us: Any) -> Any:
    """Return the fraction of a kernel's time in which power limits it: short ones end before the board reacts."""
    return duration_us / (duration_us + reaction_us)
