"""Description of an artifact's GPU machine code for `explain --launches`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli.output import table
from tilestitch.compiler.cli.regions import all_launches

if TYPE_CHECKING:
    from tilestitch.codegen.cuda.machine_code.flow import MachineCode

HEADER = ("symbol", "compiled for", "instructions", "in main loop", "of these", "load", "store", "per byte")


def machine_code(path: Path, explained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `machine_code` of every kernel of an artifact, for each architecture: its instructions, and findings.

    Without a disassembler it is empty, and `machine_code_unread` is the reason.
    """
    from tilestitch.codegen.cuda.machine_code.disassemble import disassemble
    from tilestitch.codegen.errors import DisassemblerError
    from tilestitch.runtime.artifact import read_artifact

    artifact = read_artifact(path)
    cubins = [name for name in artifact.member_names if name.endswith(".cubin")]
    try:
        codes = disassemble((name.split("/")[1], bytes(artifact.member(name))) for name in cubins)
    except DisassemblerError as error:
        return {"machine_code": [], "machine_code_unread": str(error)}
    launches = {one["symbol"]: (kernel, one) for kernel in explained["kernels"] for one in all_launches(kernel)}
    is_open = bool(explained.get("sizes", {}).get("symbols"))
    return {"machine_code": [_row(code, *launches[code.symbol], is_open) for code in codes if code.symbol in launches]}


def _row(code: MachineCode, kernel: Mapping[str, Any], launch: Mapping[str, Any], is_open: bool) -> dict[str, Any]:
    from tilestitch.codegen.cuda.machine_code.lint import Widths, lint, widths
    from tilestitch.codegen.cuda.machine_code.mix import mix_of

    widest, mix = widths(code), mix_of(code)
    counted = len(kernel["launches"]) == 1 and not is_open
    moved = kernel["bytes_read"] + kernel["bytes_written"] if counted else 0
    threads = prod(launch["grid"]) * prod(launch["block"]) if counted else 0
    return {
        "symbol": code.symbol, "architecture": code.architecture, "instructions": mix.instructions,
        "in_main_loop": mix.in_loop, "groups": dict(mix.groups),
        "widest_load_bytes": widest.load_bytes, "widest_store_bytes": widest.store_bytes,
        "instructions_per_byte": mix.per_byte(threads, moved),
        "findings": [str(finding) for finding in lint(code, Widths(**launch["widest_access"]))],
    }  # fmt: skip


def describe_machine_code(explained: Mapping[str, Any]) -> list[str]:
    """Return the machine code as a table, with the findings below it."""
    if "machine_code_unread" in explained:
        return [f"machine code not read: {explained['machine_code_unread']}"]
    rows: Sequence[Mapping[str, Any]] = explained.get("machine_code", ())
    if not rows:
        return []
    findings = [finding for row in rows for finding in row["findings"]]
    return [table([_cells(row) for row in rows], HEADER), *(f"wrong: {finding}" for finding in findings)]


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    mix = ", ".join(f"{count} {group}" for group, count in row["groups"].items())
    per_byte = row["instructions_per_byte"]
    return (
        row["symbol"], row["architecture"], row["instructions"], row["in_main_loop"] or "-", mix,
        row["widest_load_bytes"], row["widest_store_bytes"], "-" if per_byte is None else f"{per_byte:.2g}",
    )  # fmt: skip
