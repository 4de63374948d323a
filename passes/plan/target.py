"""The machine that a plan is made for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from tilestitch.runtime.jsonfields import Fields, integer

from .cpu.isa import Isa, isa_named
from .group import Group

INTEGER_MMA = 80
"""The oldest architecture whose tensor cores multiply 8-bit integers, by `mma.sync.m16n8k32`."""

SMALL_FLOAT_MMA = 89
"""The oldest architecture whose tensor cores multiply 8-bit floats."""

_LEFT_OUT = ("is_share", "dot", "half_dot", "tile_dots", "shares_ports", "without_winograd")
"""Fields that JSON omits where they are empty."""


@cache
def _core(isa: str, dot: str, half_dot: str, tile_dots: tuple[str, ...], shares_ports: bool, winograd: bool) -> Isa:
    """Return the vector unit of a target; cached, as planning calls it many thousands of times."""
    return replace(isa_named(isa, dot, half_dot, tile_dots), shares_ports=shares_ports, winograd=winograd)


@dataclass(frozen=True)
class TargetInfo:
    """What the passes may know about the machine that will run the model. Sizes in bytes."""

    name: str = "cpu"
    threads: int = 1
    device: str = ""
    """The GPU that code is planned for, by its name in the table of devices; "" for the default."""
    architectures: tuple[str, ...] = ()
    """GPU architectures that machine code is generated for, such as `sm_90a`; empty for the device's own."""
    multiprocessors: int | None = None
    """Multiprocessors of the smallest GPU that the code must run on, if that is not `device`."""
    is_share: bool = False
    """Whether the code is planned for so many of the device's multiprocessors, and not for all of them."""
    isa: str = ""
    """The vector unit of a CPU, by its name in `cpu.isa`; "" for the default."""
    dot: str = ""
    """The instruction with which a CPU multiplies 8-bit integers, by its name in `cpu.isa`; "" for none. In a plan: the
    one that its kernels need.
    """
    half_dot: str = ""
    """The same for half floats."""
    tile_dots: tuple[str, ...] = ()
    """The same for tiles of either."""
    shares_ports: bool = False
    """Whether a CPU's vector multiply ports also convert and add (see `cpu.isa`)."""
    without_winograd: bool = False
    """Whether CPU convolutions are computed directly, not by Winograd's algorithm (see `cpu.winograd`)."""
    task_buffer_bytes: int = 256 * 1024
    """Scratch memory that a task may use and expect to stay in its cache."""

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("cuda")

    @property
    def core(self) -> Isa:
        """The vector unit that schedules are made for. Raises PlanError if there is none with that name."""
        return _core(
            self.isa, self.dot, self.half_dot, tuple(self.tile_dots), self.shares_ports, not self.without_winograd
        )

    @property
    def multiplies_bytes(self) -> bool:
        """Whether some unit multiplies 8-bit integers faster than floats: on GPUs, tensor cores from sm_80 on."""
        return all(_number(each) >= INTEGER_MMA for each in self.architectures) if self.is_gpu else bool(self.dot)

    @property
    def left_bytes(self) -> tuple[str, ...]:
        """The byte dtypes that may be left operands of a product with int8, where some unit computes it."""
        if self.is_gpu:
            return ("int8", "uint8")
        return () if self.core.dot is None else self.core.dot.operands[:1]

    @property
    def packs_bytes(self) -> bool:
        """Whether 8-bit integers known only at run time are packed for a CPU instruction, too."""
        dot = None if self.is_gpu else self.core.dot
        return dot is not None and dot.packs_at_run_time

    @property
    def multiplies_small_floats(self) -> bool:
        """Whether tensor cores multiply 8-bit floats."""
        return self.is_gpu and all(_number(each) >= SMALL_FLOAT_MMA for each in self.architectures)

    def why_not_on(self, machine: TargetInfo) -> str | None:
        """Return why a plan made for this target does not suit `machine`; None if it does.

        A CPU plan suits any number of threads and one vector unit, which must have the instructions that the plan
        needs. A GPU plan is made for one device, and blocks that wait for each other must all be resident on the
        smallest GPU, for which launches are sized.
        """
        if self.is_gpu != machine.is_gpu:
            return f"it was made for {self.name}, not for {machine.name}"
        if self.is_share != machine.is_share:
            return f"it was made for {self}, not for {machine}"
        if (self.device, self.architectures, self.isa) != (machine.device, machine.architectures, machine.isa):
            return f"it was made for {self}, not for {machine}"
        if self.dot not in ("", machine.dot):
            return f"its kernels need the instruction {self.dot}; {machine} has {machine.dot or 'none such'}"
        if self.half_dot not in ("", machine.half_dot):
            return f"its kernels need the instruction {self.half_dot}; {machine} uses {machine.half_dot or 'none such'}"
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
        half = self.half_dot if self.half_dot in needed else ""
        dot = self.dot if needed & replace(self, half_dot="", tile_dots=()).instructions else ""
        return replace(self, dot=dot, half_dot=half, tile_dots=tuple(n for n in self.tile_dots if n in needed))

    @property
    def instructions(self) -> frozenset[str]:
        """The instructions that multiply groups of narrow numbers."""
        return frozenset({*self.tile_dots, *(dot.name for dot in self.core.dots)})

    def __str__(self) -> str:
        named = self.device or self.name
        parts = self.architectures or ((self.isa,) if self.isa else ())
        share = f"{self.multiprocessors} multiprocessors of " if self.is_share else ""
        return share + (f"{named} ({', '.join(parts)})" if parts else named)

    def to_json(self) -> dict[str, Any]:
        """Return the target as JSON data; the fields in `_LEFT_OUT` are omitted if empty."""
        data = {**asdict(self), "architectures": list(self.architectures), "tile_dots": list(self.tile_dots)}
        return {key: value for key, value in data.items() if value or key not in _LEFT_OUT}

    @staticmethod
    def from_json(data: Any, where: str = "target") -> TargetInfo:
        """Return the target in JSON data. Raises ArtifactSchemaError, naming the field, if `data` is not as `to_json`
        writes it.
        """
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
            is_share=fields.optional_boolean("is_share"),
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
    """Return the number of an architecture, such as 80 for sm_80."""
    return int("".join(c for c in architecture if c.isdigit()))


def specific_of(architectures: Sequence[str]) -> str | None:
    """Return `sm_90a` if that is the only architecture, and likewise for others with a suffix; else None."""
    return architectures[0] if len(architectures) == 1 and not architectures[0][-1].isdigit() else None
