"""Compares the registers that are estimated from schedules with those of the machine code, by template.

    python -m benchmarks.cuda_registers [NAME ...] [--target cuda:sm_80] ... [--precision fp16] ... [--worst N]

Models are those of `benchmarks.cuda_lint`. No GPU is needed, and no CUDA installation. Kernels come from the user's
cache where they were compiled before; equal ones count once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.cuda_choices import add_choices, chosen
from tilestitch.compiler.driver import CompiledModel, compile_model
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.registers import registers_of_group


@dataclass(frozen=True)
class Compared:
    """A kernel's registers, as estimated and as they are."""

    template: str
    symbol: str
    estimated: int
    actual: int

    @property
    def error(self) -> float:
        return (self.estimated - self.actual) / self.actual


def compare(compiled: CompiledModel) -> Iterator[Compared]:
    """All groups with kernels of a model for one architecture; of several launches, the one with most registers."""
    for one in compiled.specialisations:
        by_name = {node.name: node for node in one.graph.nodes}
        launches = {kernel["name"]: kernel["launches"] for kernel in one.explanation["kernels"]}
        for group in one.plan.groups:
            known = [(x["machine_code"][0]["registers"], x["symbol"]) for x in launches.get(group.name, ())]
            if known and (group.schedule is not None or group.stages):
                actual, symbol = max(known)
                yield Compared(template_of(group), symbol, registers_of_group(by_name, group), actual)


def template_of(group: Group) -> str:
    """Of its schedule and tile; `band` and `stages` of stitched groups."""
    if group.stages:
        return "band" if group.tie == "band" else "stages"
    assert group.schedule is not None
    tile = getattr(group.schedule, "tile", None)
    return group.schedule.template if tile is None else f"{group.schedule.template} {tile.template}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_registers", description=__doc__.split("\n\n")[0])
    add_choices(parser)
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="name so many kernels of each template")
    options = parser.parse_args(arguments)
    found: dict[str, Compared] = {}
    for path, target, precision in chosen(parser, options):
        compiled = compile_model(path, target, precision=precision, num_threads=options.processes)
        found.update((f"{one.symbol} {target}", one) for one in compare(compiled))
    print("| template | kernels | mean error, % | of it bias, % | largest error, % |\n|---|---|---|---|---|")
    templates = sorted({one.template for one in found.values()})
    for template in [*templates, "all"]:
        kernels = [one for one in found.values() if template in (one.template, "all")]
        errors = [100 * one.error for one in kernels]
        sizes = list(map(abs, errors))
        mean, bias, most = sum(sizes) / len(sizes), sum(errors) / len(errors), max(sizes)
        print(f"| {template} | {len(kernels)} | {mean:.0f} | {bias:+.0f} | {most:.0f} |")
        if template != "all":
            for one in sorted(kernels, key=lambda one: -abs(one.error))[: options.worst]:
                print(f"  {one.symbol}: estimated {one.estimated}, is {one.actual}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
