"""Schedules of pooling windows and depthwise convolutions on a CPU."""

import math
from functools import lru_cache
from itertools import chain

from tilestitch.passes.plan.cpu.images import ConvShape, interior
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.schedules import CpuWindowSchedule
from tilestitch.passes.plan.cpu.tiling import split_at_most
from tilestitch.passes.plan.cpu.window import WindowPlan, why_no_line

from .cycles import window_task
from .tasks import SHAPES, choose_blocks

MAX_UNROLLED = 96
"""Most combine steps of a kernel row that are written out in code."""
MOST_TAPS = 8
"""Most taps of a kernel row that is written out in code."""
LEAST_LANES = 4
MOST_COLUMNS, MOST_VECTORS = 8, 8
"""Most columns of windows, and most vectors of channels of windows in loops, held at a time."""


@lru_cache(SHAPES)
def choose_window(shape: ConvShape, isa: Isa, threads: int) -> CpuWindowSchedule:
    """Return the schedule: registers and tasks.

    Channels-last images are computed in vectors of channels; others in vectors of output columns, if there are enough.
    Raises ValueError for an empty output or for channels that are mixed.
    """
    if shape.groups != shape.in_channels:
        raise ValueError(f"window over mixed channels in {shape}; it is a convolution")
    whole = shape.in_planes()
    if min(whole.batch, whole.out_channels, *whole.output) < 1:
        raise ValueError(f"window with an empty result {shape}; skip the launch")
    form, lanes = _form(whole, isa)
    vectors, columns = _registers(whole, isa, form)
    draft = WindowPlan(whole, shape.rank, CpuWindowSchedule(form, lanes, vectors, columns, 1, vectors * lanes))
    if next(draft.reasons(), None) is not None:
        # Borders so wide that hardly any two neighbouring windows are alike: too much to write out.
        form, lanes = "channels", isa.lanes(shape.acc_dtype) if whole.channels_last else 1
        vectors, columns = _registers(whole, isa, form)
        draft = WindowPlan(whole, shape.rank, CpuWindowSchedule(form, lanes, vectors, columns, 1, vectors * lanes))
    rows, channels = _blocks(draft, threads)
    return CpuWindowSchedule(form, lanes, vectors, columns, rows, channels)


def _form(shape: ConvShape, isa: Isa) -> tuple[str, int]:
    """Return the form and its vector length: for a row of few columns less than a register, but not scalar if there are
    enough columns.
    """
    widest = isa.lanes(shape.acc_dtype)
    if shape.channels_last:
        unrolled = shape.kernel[-1] <= MOST_TAPS and 2 * shape.pads[-1][0] <= shape.output[-1] + 16
        return ("columns" if unrolled else "channels"), widest
    some = [widest, *(widest >> n for n in range(1, widest.bit_length()) if widest >> n >= LEAST_LANES)]
    first, last = interior(shape)
    lines = (("line", lanes) for lanes in some if shape.output[-1] >= lanes and why_no_line(shape, lanes) is None)
    across = (("across", lanes) for lanes in some if last - first >= lanes > 1)
    return next(chain(lines, across), ("channels", 1))


def _registers(shape: ConvShape, isa: Isa, form: str) -> tuple[int, int]:
    """Return the vectors of channels, and the columns, held at a time."""
    if not shape.channels_last:
        return 1, 1
    whole = max(1, shape.out_channels // isa.lanes(shape.acc_dtype))
    if form != "columns":
        columns = split_at_most(shape.output[-1], MOST_COLUMNS).largest
        return min(isa.vector_registers // (2 * columns), MOST_VECTORS, whole), columns
    vectors = max(count for count in (1, 2) if whole % count == 0)
    return vectors, split_at_most(shape.output[-1], most_columns(shape, vectors, isa)).largest


def most_columns(shape: ConvShape, vectors: int, isa: Isa) -> int:
    """Return the output columns held, and written out, at a time, for `vectors` vectors of channels."""
    limit = min((isa.vector_registers - 4) // vectors, MAX_UNROLLED // (shape.kernel[-1] * vectors))
    return max(1, min(MOST_COLUMNS, limit))


def _blocks(plan: WindowPlan, threads: int) -> tuple[int, int]:
    """Return the rows and channels per task."""
    shape = plan.shape
    steps = -(-shape.out_channels // plan.step)
    repeats = shape.batch * math.prod(shape.output[:-2])
    rows, channels = choose_blocks(shape.output[-2], steps, repeats, threads, window_task(plan))
    return rows, channels * plan.step
