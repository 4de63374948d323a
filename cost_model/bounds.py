"""Quick bounds, by which a rule or search prunes before, or instead of, evaluating a latency model.

They depend on the machine only, not on shapes or schedules: what it computes, and moves, in the time of a launch.
"""

from . import constants as c
from .analytical import AnalyticalModel
from .devices import Device
from .protocol import AnyDevice, LatencyModel


def least_us(model: LatencyModel, device: AnyDevice) -> float:
    """Return a lower bound on the predictions of `model` for any kernel; 0 if none is known."""
    if not isinstance(model, AnalyticalModel):
        return 0.0
    return c.GPU_LAUNCH_US if isinstance(device, Device) else device.launch_us


def most_operations_again(bytes_saved: int, results: int, device: AnyDevice) -> int:
    """Return how many operations may be recomputed where one kernel replaces several and `bytes_saved` need not move.

    results: most elements computed in parallel; a GPU has a lane for each of many.
    """
    if not isinstance(device, Device):
        return c.OPERATIONS_PER_BYTE * bytes_saved + c.LAUNCH_OPERATIONS
    lanes = max(1, min(results, device.sm_count * c.GPU_LANES))
    return int((c.GPU_LAUNCH_US / 1e6 + _moving_s(bytes_saved, device)) * lanes * device.clock_hz)


def most_bytes_gained(bytes_saved: int, launches_saved: int, operations_again: int, device: AnyDevice) -> float:
    """Return the gain of one kernel over several, expressed as bytes moved to memory and back."""
    return bytes_saved + launch_bytes(device) * launches_saved - operations_again / _operations_per_byte(device)


def launch_bytes(device: AnyDevice) -> float:
    """Return the bytes that are moved to memory and back in the time of a launch."""
    if not isinstance(device, Device):
        return c.LAUNCH_BYTES
    return c.GPU_LAUNCH_US / 1e6 / _moving_s(1, device)


def _operations_per_byte(device: AnyDevice) -> float:
    """Return the operations of the whole machine in the time of moving a byte to memory and back."""
    if not isinstance(device, Device):
        return c.OPERATIONS_PER_BYTE
    return _moving_s(1, device) * device.sm_count * c.GPU_LANES * device.clock_hz


def _moving_s(nbytes: int, gpu: Device) -> float:
    """Return the seconds in which a GPU stores `nbytes` and loads them again, at best from its L2 cache."""
    return 2 * nbytes / (gpu.sm_count * c.rates_of(gpu).l2_bytes_per_cycle * gpu.clock_hz)
