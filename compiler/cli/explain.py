"""Says which kernels an artifact has, what each computes, and what was not fused and why.

tilestitch explain model.tsm --node /encoder/layer.0/MatMul
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json, existing, writable
from tilestitch.compiler.cli.output import give, say, table

SUMMARY = "say which kernels an artifact has, and why"
MEMBER = "explain.json"
NODES_SHOWN = 4

# A refusal is about one node, or about several: `producer -> consumer`, `a + b`.
SUBJECTS = re.compile(r" -> | \+ ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="MODEL.tsm")
    parser.add_argument("--node", metavar="NAME", help="only what concerns this ONNX node")
    parser.add_argument(
        "--launches", action="store_true", help="also the launches of each kernel: extents, and what they need of a GPU"
    )
    parser.add_argument("--report", metavar="REPORT.html", help="write it as a page")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    target = writable(options.report) if options.report else None
    explained = read_explain(existing(options.artifact))
    if options.node is not None:
        explained = about_node(explained, options.node)
    if target is not None:
        from tilestitch.compiler.report import write_report

        write_report(target, {"model": Path(options.artifact).stem, **explained})
    if options.json:
        give(explained)
    else:
        say(describe(explained, with_launches=options.launches))
        if target is not None:
            say(f"report: {target}")
    return errors.OK


def read_explain(path: Path) -> dict[str, Any]:
    """What the compiler wrote into the artifact; raises UsageError when the artifact has no explanation."""
    from tilestitch.runtime.artifact import read_artifact

    artifact = read_artifact(path)
    if MEMBER not in artifact.member_names:
        raise errors.UsageError(f"{path} holds no explanation; compile the model again")
    explained: dict[str, Any] = json.loads(bytes(artifact.member(MEMBER)))
    return explained


def about_node(explained: Mapping[str, Any], node: str) -> dict[str, Any]:
    """EXPLAINED with only the kernels and host steps that compute NODE, and the refusals about what is in them."""
    kernels, steps = ([one for one in explained[key] if node in one["onnx_nodes"]] for key in ("kernels", "host_steps"))
    if not kernels and not steps:
        raise errors.UsageError(f"nothing computes a node named {node!r}{_similar(explained, node)}")
    names = {node, *(name for kernel in kernels for name in kernel["nodes"])}
    refusals = [refusal for refusal in explained["refusals"] if names & set(SUBJECTS.split(refusal["subject"]))]
    return {**explained, "kernels": kernels, "host_steps": steps, "refusals": refusals}


def _similar(explained: Mapping[str, Any], node: str) -> str:
    import difflib

    parts = [*explained["kernels"], *explained["host_steps"]]
    close = difflib.get_close_matches(node, sorted({name for part in parts for name in part["onnx_nodes"]}), 3)
    return f"; there is {', '.join(close)}" if close else "; it may have been folded away"


def describe(explained: Mapping[str, Any], *, with_launches: bool = False) -> str:
    """EXPLAINED as text for people."""
    kernels = explained["kernels"]
    rows = [
        (index, kernel["name"], kernel["kind"], "+".join(map(str, kernel["composition"])) or "-", _nodes(kernel))
        for index, kernel in enumerate(kernels)
    ]
    parts = [
        f"target {explained['target']}, planner {explained['planner']}, precision {explained['precision']}, "
        f"{len(kernels)} kernels",
        table(rows, ("#", "kernel", "kind", "composition", "ONNX nodes")),
    ]
    if with_launches:
        parts.append(_launches(kernels))
    if explained["host_steps"]:
        parts.append("run with numpy between kernels:")
        parts.extend(f"  {step['op']}: {_nodes(step)}" for step in explained["host_steps"])
    if explained["refusals"]:
        parts.append("not fused:")
        parts.extend(f"  {_refusal(refusal)}" for refusal in explained["refusals"])
    return "\n".join(parts)


def _launches(kernels: Sequence[Mapping[str, Any]]) -> str:
    """A line for each launch; on a GPU, one for each architecture that it was compiled for."""
    rows: list[tuple[object, ...]] = []
    for index, kernel in enumerate(kernels):
        for launch in kernel["launches"]:
            if "tasks" in launch:
                rows.append((index, launch["symbol"], launch["tasks"], launch["scratch_bytes"]))
                continue
            extents = ("x".join(map(str, launch["grid"])), "x".join(map(str, launch["block"])))
            for code in launch["machine_code"] or [{}]:
                needs = (code.get(key, "-") for key in ("architecture", "registers", "local_bytes", "blocks_per_sm"))
                shared_bytes = launch["shared_bytes"] + code.get("shared_bytes", 0)
                rows.append((index, launch["symbol"], *extents, shared_bytes, *needs))
    if not rows:
        return "no launches"
    on_cpu = ("#", "symbol", "tasks", "scratch bytes")
    on_gpu = ("#", "symbol", "grid", "block", "shared bytes", "compiled for", "registers", "local bytes", "blocks/SM")
    return table(rows, on_cpu if len(rows[0]) == len(on_cpu) else on_gpu)


def _nodes(kernel: Mapping[str, Any]) -> str:
    nodes: Sequence[str] = kernel["onnx_nodes"]
    more = len(nodes) - NODES_SHOWN
    return ", ".join(nodes[:NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _refusal(refusal: Mapping[str, Any]) -> str:
    numbers = ", ".join(f"{name}={value}" for name, value in refusal["numbers"].items())
    return f"{refusal['subject']}: {refusal['reason']} [{refusal['rule']}]{f' ({numbers})' if numbers else ''}"
