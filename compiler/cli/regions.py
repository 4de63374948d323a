"""Description, for `explain`, of kernels that have a schedule for each region of a range of sizes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilestitch.compiler.cli.output import table

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
