"""CPU launches that check run-time indices: one per node of a group whose indices may be out of range."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.compiler.ir.sizes import ceil_div, largest
from tilestitch.passes.plan.index_checks import IndexCheck

TASK_INDICES = 65536


def check_tasks(checks: Sequence[IndexCheck]) -> int:
    """Return the tasks of the launch that makes these checks of one node."""
    return largest(1, ceil_div(largest(*(check.count for check in checks)), TASK_INDICES))
