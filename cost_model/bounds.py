"""Quick bounds: what a rule or a search leaves out before a latency model is asked, or where asking would be too slow.

They know no shapes and no schedules. But for `launch_bytes` they take every machine for a core of a CPU, on which
arithmetic is dearest: on GPUs they allow less to be computed again than would pay.
"""

from __future__ import annotations

from .constants import GPU_LAUNCH_BYTES, LAUNCH_BYTES, LAUNCH_OPERATIONS, OPERATIONS_PER_BYTE


def most_operations_again(bytes_saved: int) -> int:
    """Operations that may be done again where one kernel takes the place of several, and so many bytes stay put."""
    return OPERATIONS_PER_BYTE * bytes_saved + LAUNCH_OPERATIONS


def most_bytes_gained(bytes_saved: int, launches_saved: int, operations_again: int) -> float:
    """What one kernel gains over several, everything as bytes that move to memory and back."""
    return bytes_saved + LAUNCH_BYTES * launches_saved - operations_again / OPERATIONS_PER_BYTE


def launch_bytes(on_gpu: bool) -> int:
    """Bytes that move to memory and back in the time of a launch."""
    return GPU_LAUNCH_BYTES if on_gpu else LAUNCH_BYTES
