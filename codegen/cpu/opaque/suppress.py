"""The template of suppress: the boxes of a class by decreasing score, each kept unless it overlaps an earlier one too
much.
"""

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.opaque import SIDES, corners, share_too_much
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, kernel_function
from tilestitch.codegen.cpu.contraction.microkernel import scratch_buffer
from tilestitch.codegen.cpu.opaque.sort import counter
from tilestitch.passes.plan.cpu.opaque import SuppressPlan

from . import radix


def lower_suppress(plan: SuppressPlan) -> KernelLaunch:
    """Return the launch; one task has one class of one image."""
    node = plan.node
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        _Suppression(plan, buffers, scratch).run(T.bind(T.cast(task, "int64")))

    func = kernel_function(parameters, body)
    return KernelLaunch(
        "suppress", func, plan.tasks, tuple(p.arg for p in parameters), node.origins, plan.scratch_bytes
    )


class _Suppression:
    """One task. The workspace holds scores and positions, sorted between two halves, and the corners and areas of kept
    boxes.
    """

    def __init__(self, plan: SuppressPlan, buffers: list[Any], scratch: Expr) -> None:
        self.plan = plan
        self.boxes, self.scores, self.most, self.overlap, self.least, self.places, self.counts = buffers
        self.keys = scratch_buffer(scratch, 0, (plan.room,), "uint32", "keys")
        self.positions = scratch_buffer(scratch, plan.key_bytes, (plan.room,), "int32", "positions")
        self.kept = scratch_buffer(scratch, 2 * plan.key_bytes, (plan.boxes, SIDES + 1), "float32", "kept")

    def run(self, line: Expr) -> None:
        plan = self.plan
        count = T.bind(integer(plan.boxes, "int32"))
        start = T.bind(line * integer(plan.boxes, "int64"))
        first = T.bind(line // integer(plan.classes, "int64") * integer(plan.boxes, "int64"))
        candidates = self.candidates(start, count)
        radix.sort(self.keys, self.positions, candidates, count, "float32")
        limit = T.bind(T.cast(T.min(T.max(self.most[0], T.int64(0)), T.cast(count, "int64")), "int32"))
        at, kept = counter(), counter()
        with T.While(tirx.And(at[0] < candidates, kept[0] < limit)):
            place = T.bind(self.positions[at[0]])
            box = corners(self.boxes, first + T.cast(place, "int64"), self.plan.node.attrs["centers"])
            with T.If(tirx.EQ(self.overlapping(box, kept[0]), 0)), T.Then():
                for side, value in enumerate(box):
                    T.buffer_store(self.kept, value, [kept[0], side])
                T.buffer_store(self.places, T.cast(place, "int64"), [start + T.cast(kept[0], "int64")])
                T.buffer_store(kept, kept[0] + 1, [0])
            T.buffer_store(at, at[0] + 1, [0])
        T.buffer_store(self.counts, T.cast(kept[0], "int64"), [line])

    def candidates(self, start: Expr, count: Expr) -> Expr:
        """Store the scores above the least one in the workspace, and return their number."""
        found = counter()
        least = T.bind(self.least[0])
        with T.serial(0, count) as i:
            score = named(self.scores[start + T.cast(i, "int64")])
            with T.If(score > least), T.Then():
                T.buffer_store(self.keys, radix.code(score, "float32", "uint32", descending=True), [found[0]])
                T.buffer_store(self.positions, i, [found[0]])
                T.buffer_store(found, found[0] + 1, [0])
        return T.bind(found[0])

    def overlapping(self, box: list[Expr], kept: Expr) -> Expr:
        """Return 1 if a kept box overlaps this one too much."""
        drop, j = counter(), counter()
        with T.While(tirx.And(j[0] < kept, tirx.EQ(drop[0], 0))):
            other = [named(self.kept[j[0], side]) for side in range(SIDES + 1)]
            too_much = share_too_much(box, other, self.overlap[0])
            T.buffer_store(drop, T.cast(too_much, "int32"), [0])
            T.buffer_store(j, j[0] + 1, [0])
        return drop[0]
