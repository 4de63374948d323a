"""Machine code of a kernel as data: its instructions, in order, and its control flow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .flow import Flow, flow_of
from .instructions import Instruction


@dataclass(frozen=True)
class MachineCode:
    """A kernel's instructions. architecture: `sm_90a`."""

    symbol: str
    architecture: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def flow(self) -> Flow:
        return flow_of(self.instructions)
