"""The machine that a plan is made for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from tilestitch.runtime.jsonfields import Fields, integer

from .cpu.isa import Isa, isa_named
from .group import Group

INTEGER_MMA = 80
"""The oldest architecture whose tensor cores multiply 8-bit integers by `mma.sync.m16n8k32`."""

SMALL_FLOAT_MMA = 89
"""The oldest architecture whose tensor cores multiply floats of 8 bits."""

_LEFT_OUT = ("dot", "half_dot", "tile_dots", "shares_ports", "without_winograd")
"""Fields that are not written where they have nothing."""


@cache
def _core(isa: str, dot: str, half_dot: str, tile_dots: tuple[str, ...], shares_ports: bool, winograd: bool) -> Isa:
    """Kept, for planning asks for it many thousands of times."""
    return replace(isa_named(isa, dot, half_dot, tile_dots), shares_ports=shares_ports, winograd=winograd)


@dataclass(frozen=True)
class TargetInfo:
    """What the passes may know of the machine that will run the model. Sizes in bytes."""

    name: str = "cpu"
    threads: int = 1
    device: str = ""
    """The GPU that code is planned for, by its name in the table of devices; "" for the usual one."""
    architectures: tuple[str, ...] = ()
    """Of GPUs that machine code is made for, such as `sm_90a`; empty for the device's own."""
    multiprocessors: int | None = None
    """Of the smallest GPU that the code must run on, if that is not `device`."""
    isa: str = ""
    """The vector unit of a CPU, by its name in `cpu.isa`; "" for the usual one."""
    dot: str = ""
    """The instruction by which a CPU multiplies 8-bit integers, by its name in `cpu.isa`; "" for none. Of a plan: the
    one that its kernels need."""
    half_dot: str = ""
    """The same for half floats."""
    tile_dots: tuple[str, ...] = ()
    """The same for tiles of either."""
    shares_ports: bool = False
    """Whether a CPU multiplies vectors by the ports that convert and add, too (see `cpu.isa`)."""
    without_winograd: bool = False
    """Whether convolutions on a CPU multiply as they are written (see `cpu.winograd`)."""
    task_buffer_bytes: int = 256 * 1024
    """Scratch that one task may use and expect to stay in its cache."""

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("cuda")

    @property
    def core(self) -> Isa:
        """What schedules know of a CPU; PlanError if there is none such."""
        return _core(
            self.isa, self.dot, self.half_dot, tuple(self.tile_dots), self.shares_ports, not self.without_winograd
        )

    @property
    def multiplies_bytes(self) -> bool:
        """Whether some unit multiplies 8-bit integers faster than floats: of GPUs, the tensor cores from sm_80 on."""
        return all(_number(each) >= INTEGER_MMA for each in self.architectures) if self.is_gpu else bool(self.dot)

    @property
    def left_bytes(self) -> tuple[str, ...]:
        """The dtypes of bytes that are multiplied from the left by int8, where some unit does."""
        if self.is_gpu:
            return ("int8", "uint8")
        return () if self.core.dot is None else self.core.dot.operands[:1]

    @property
    def packs_bytes(self) -> bool:
        """Whether 8-bit integers known at run time only are packed for an instruction of a CPU, too."""
        dot = None if self.is_gpu else self.core.dot
        return dot is not None and dot.packs_at_run_time

    @property
    def multiplies_small_floats(self) -> bool:
        """Whether tensor cores multiply floats of 8 bits."""
        return self.is_gpu and all(_number(each) >= SMALL_FLOAT_MMA for each in self.architectures)

    def why_not_on(self, machine: TargetInfo) -> str | None:
        """Return why a plan that was made for this target is none for `machine`; None if it is one.

        A CPU's plan suits any number of threads and one vector unit, which must have the instruction that it needs. A
        GPU's is made for one device, and blocks that wait for each other must all be resident on the smallest one, of
        which launches have as many as fit.
        """
        if self.is_gpu != machine.is_gpu:
            return f"it was made for {self.name}, not for {machine.name}"
        if (self.device, self.architectures, self.isa) != (machine.device, machine.architectures, machine.isa):
            return f"it was made for {self}, not for {machine}"
        if self.dot not in ("", machine.dot):
            return f"its kernels need the instruction {self.dot}; {machine} has {machine.dot or 'none such'}"
        if self.half_dot not in ("", machine.half_dot):
            return f"its kernels need the instruction {self.half_dot}; {machine} has {machine.half_dot or 'none such'}"
        lacking = sorted(set(self.tile_dots) - set(machine.tile_dots))
        if lacking:
            return f"its kernels need the instruction {lacking[0]}, which {machine} lacks"
        if (machine.multiprocessors or 0) < (self.multiprocessors or 0):
            return f"its blocks need {self.multiprocessors} multiprocessors, {machine} has {machine.multiprocessors}"
        if machine.multiprocessors != self.multiprocessors:
            return f"it was cut for {self.multiprocessors} multiprocessors, not for {machine.multiprocessors}"
        return None

    def needed_by(self, groups: Iterable[Group]) -> TargetInfo:
        """Return the target without instructions for integers or half floats that no group needs."""
        needed = frozenset().union(*(group.instructions for group in groups))
        dot, half = (name if name in needed else "" for name in (self.dot, self.half_dot))
        return replace(self, dot=dot, half_dot=half, tile_dots=tuple(n for n in self.tile_dots if n in needed))

    @property
    def instructions(self) -> frozenset[str]:
        """Those that multiply groups of narrow numbers."""
        return frozenset({self.dot, self.half_dot, *self.tile_dots} - {""})

    def __str__(self) -> str:
        named = self.device or self.name
        parts = self.architectures or ((self.isa,) if self.isa else ())
        return f"{named} ({', '.join(parts)})" if parts else named

    def to_json(self) -> dict[str, Any]:
        """`dot`, `half_dot`, `tile_dots`, `shares_ports` and `without_winograd` are left out where there is none."""
        data = {**asdict(self), "architectures": list(self.architectures), "tile_dots": list(self.tile_dots)}
        return {key: value for key, value in data.items() if value or key not in _LEFT_OUT}

    @staticmethod
    def from_json(data: Any, where: str = "target") -> TargetInfo:
        """Raise ArtifactSchemaError, naming the field, if `data` is not what `to_json` writes."""
        fields = Fields(data, where)
        multiprocessors = fields.take("multiprocessors")
        target = TargetInfo(
            name=fields.string("name"),
            threads=fields.integer("threads", 1),
            device=fields.string("device"),
            architectures=fields.strings("architectures"),
            multiprocessors=None
            if multiprocessors is None
            else integer(multiprocessors, f"{where}.multiprocessors", 1),
            isa=fields.string("isa"),
            dot=fields.string("dot") if "dot" in data else "",
            half_dot=fields.string("half_dot") if "half_dot" in data else "",
            tile_dots=fields.strings("tile_dots") if "tile_dots" in data else (),
            shares_ports=fields.optional_boolean("shares_ports"),
            without_winograd=fields.optional_boolean("without_winograd"),
            task_buffer_bytes=fields.integer("task_buffer_bytes"),
        )
        fields.done()
        return target


def _number(architecture: str) -> int:
    """80 of sm_80."""
    return int("".join(c for c in architecture if c.isdigit()))
