"""Details of kernels for `explain`: the schedules of regions of a range of sizes, and the GPU machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli.output import table

if TYPE_CHECKING:
    from tilestitch.codegen.cuda.machine_code.flow import MachineCode


HEADER = ("#", "kernel", "kind", "composition", "ONNX nodes")
NODES_SHOWN = 4
_TAKEN = {"then_graph": "where its condition holds", "else_graph": "where its condition does not hold"}


def kernel_table(explained: Mapping[str, Any]) -> str:
    """Return a table with one row per kernel, in launch order."""
    rows = [
        (k["number"], k["name"], k["kind"], "+".join(map(str, k["composition"])) or "-", onnx_nodes(k))
        for k in explained["kernels"]
    ]
    return table(rows, HEADER)


def onnx_nodes(kernel: Mapping[str, Any]) -> str:
    nodes = kernel["onnx_nodes"]
    more = len(nodes) - NODES_SHOWN
    return ", ".join(nodes[:NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def kernels_in_bodies(explained: Mapping[str, Any]) -> int:
    return sum(len(body["kernels"]) + kernels_in_bodies(body) for body in explained.get("bodies", {}).values())


def describe_bodies(
    explained: Mapping[str, Any], launches: Callable[[Sequence[Mapping[str, Any]]], str] | None
) -> Iterator[str]:
    """Yield the kernels of each body with the ONNX nodes that it belongs to; `launches` describes their launches."""
    for key, body in explained.get("bodies", {}).items():
        node, _, attribute = key.rpartition(".")
        whose = ", ".join(explained["origins"].get(node) or [node])
        when = _TAKEN.get(attribute, "in each turn")
        if body["kernels"]:
            yield f"{whose}, {when}: {len(body['kernels'])} kernels"
            yield kernel_table(body)
            if launches is not None:
                yield launches(body["kernels"])
        yield from describe_bodies(body, launches)


def describe_regions(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return decision tables: where each schedule is run, and its predicted gain; nothing if there are none."""
    rows = [
        (kernel["number"], kernel["name"], cases["size"], between(region), described(region["schedule"]),
         *gained(region))
        for kernel in kernels if (cases := kernel.get("cases")) for region in cases["regions"]
    ]  # fmt: skip
    if not rows:
        return []
    titles = ("#", "kernel", "chosen by", "region", "schedule", "predicted at", "us", "us with one schedule")
    return ["schedules by region of sizes:", table(rows, titles)]


def between(region: Mapping[str, Any]) -> str:
    """Return the bounds of a region as text."""
    return f"{region['from']} .." if region["below"] is None else f"{region['from']} .. {region['below'] - 1}"


def described(schedule: Mapping[str, Any]) -> str:
    """Return a schedule in one line: its template, its tile's template, and the nonzero numbers."""
    tile = schedule.get("tile")
    of = dict(schedule) if not isinstance(tile, Mapping) else {**schedule, **tile}
    numbers = (f"{key}={value}" for key, value in of.items() if type(value) is int and value)
    flags = (key for key, value in of.items() if value is True)
    return " ".join([str(of["template"]), *numbers, *flags])


def gained(region: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the sizes in a region with the largest gain, the time there, and that with one schedule for all sizes."""
    if not region["predicted"]:
        return "", "", ""
    best = max(region["predicted"], key=lambda each: each["alone_us"] / (each["us"] or 1.0))
    named = ", ".join(f"{name}={size}" for name, size in best["sizes"].items())
    return named, f"{best['us']}", f"{best['alone_us']}"


def all_launches(kernel: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the launches of a kernel at typical sizes, and those that replace them at other sizes."""
    yield from kernel["launches"]
    for region in kernel.get("cases", {}).get("regions", ()):
        yield from region.get("launches", ())


def launches_at(kernel: Mapping[str, Any], sizes: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
    """Return the launches of a kernel for values of the symbols."""
    from tilestitch.runtime.sizes import value_of

    cases = kernel.get("cases")
    found: Sequence[Mapping[str, Any]] = kernel["launches"]
    if cases is not None:
        value = value_of(cases["size"], sizes)
        region = next(each for each in reversed(cases["regions"]) if each["from"] <= value)
        found = region.get("launches", found)
    return found


CODE_HEADER = ("symbol", "compiled for", "instructions", "in main loop", "of these", "load", "store", "per byte")


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
    return [table([_cells(row) for row in rows], CODE_HEADER), *(f"wrong: {finding}" for finding in findings)]


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    mix = ", ".join(f"{count} {group}" for group, count in row["groups"].items())
    per_byte = row["instructions_per_byte"]
    return (
        row["symbol"], row["architecture"], row["instructions"], row["in_main_loop"] or "-", mix,
        row["widest_load_bytes"], row["widest_store_bytes"], "-" if per_byte is None else f"{per_byte:.2g}",
    )  # fmt: skip
