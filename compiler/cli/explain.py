"""Shows which kernels an artifact has, what each computes, and what was not fused and why.

tilestitch explain model.tsm --node /encoder/layer.0/MatMul
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json
from tilestitch.compiler.cli.inputs import add_sizes, check_sizes, sizes_of
from tilestitch.compiler.cli.kernel_details import (
    describe_bodies,
    describe_machine_code,
    describe_regions,
    kernel_table,
    kernels_in_bodies,
    launches_at,
    machine_code,
    onnx_nodes,
)
from tilestitch.compiler.cli.output import LEFT_OPEN, describe_sizes, give, say, table
from tilestitch.compiler.cli.paths import existing, writable

SUMMARY = "say which kernels an artifact has, and why"
MEMBER = "explain.json"
_FIELDS = {"kernels", "refusals", "host_steps", "host", "target", "planner", "precision", "origins", "prediction"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="MODEL.tsm", help="the artifact to explain")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--node", metavar="NAME", help="only the kernels and refusals of this ONNX node")
    asked.add_argument(
        "--edge", nargs=2, metavar=("FROM", "TO"), help="why these two ONNX nodes are one kernel, or why not"
    )
    parser.add_argument(
        "--launches",
        action="store_true",
        help="also the launches of each kernel: extents, resources on a GPU, and findings about the machine code",
    )
    parser.add_argument(
        "--schedule",
        action="store_true",
        help="also when each launch is predicted to run on the GPU, and concurrently with which",
    )
    parser.add_argument("--trace", metavar="FILE.json", help="write this schedule as a trace for ui.perfetto.dev")
    add_sizes(parser, "explain the specialisation that runs these sizes, with numbers for its launches and memory")
    parser.add_argument("--report", metavar="REPORT.html", help="write the explanation as a page")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    target = None if options.report is None else writable(options.report, [options.artifact])
    trace = None if options.trace is None else writable(options.trace, [options.artifact])
    artifact = existing(options.artifact)
    explained = read_explain(artifact)
    if options.dim:
        explained = at_sizes(artifact, explained, sizes_of(options.dim))
    if (options.schedule or trace is not None) and not explained.get("schedule"):
        raise errors.UsageError(f"{options.artifact} has no schedule of launches side by side; compile it for a GPU")
    explained = {**explained, **_asked(explained, options)}
    if options.launches:
        explained.update(machine_code(Path(options.artifact), explained))
    if target is not None:
        from tilestitch.compiler.report import write_report

        write_report(target, {"model": Path(options.artifact).stem, **explained})
    if trace is not None:
        from tilestitch.runtime.trace import write_timeline

        device = explained["prediction"]["device"]
        write_timeline(trace, explained["schedule"]["launches"], f"{options.artifact}, predicted for {device}")
    if options.json:
        give(explained)
    else:
        say(describe(explained, with_launches=options.launches, with_schedule=options.schedule))
        if target is not None:
            say(f"report: {target}")
    return errors.OK


def read_explain(path: Path) -> dict[str, Any]:
    """Return the artifact's explanation; raises UsageError when it has none."""
    from tilestitch.passes.explanation import with_plans
    from tilestitch.runtime.artifact import read_artifact

    artifact = read_artifact(path)
    if MEMBER not in artifact.member_names:
        raise errors.UsageError(f"{path} holds no explanation; compile the model again")
    explained = artifact.json_member(MEMBER)
    if not isinstance(explained, dict) or not explained.keys() >= _FIELDS - {"refusals"}:
        raise errors.UsageError(f"{path} holds an explanation that this version cannot read; compile the model again")
    try:
        return with_plans(explained, artifact.plan)
    except (KeyError, TypeError, ValueError):
        raise errors.UsageError(
            f"{path} holds an explanation of other plans than its own; compile the model again"
        ) from None


def at_sizes(path: Path, explained: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the explanation of the specialisation that runs SIZES, by name of dimension, with numbers for expressions.

    Raises UsageError for sizes that none runs, and where one is missing.
    """
    from tilestitch.runtime.artifact import read_artifact
    from tilestitch.runtime.sizes import value_of
    from tilestitch.runtime.value_info import infos

    programs = read_artifact(path).programs
    check_sizes(infos(programs)[0], sizes)
    specialisations = [explained, *explained.get("specialisations", ())]
    for number, (one, program) in enumerate(zip(specialisations, programs, strict=True)):
        symbols = one["sizes"]["symbols"]
        if not all(symbol["low"] <= sizes.get(symbol["name"], symbol["low"]) <= symbol["high"] for symbol in symbols):
            continue
        lacking = [symbol["name"] for symbol in symbols if symbol["name"] not in sizes]
        if lacking:
            raise errors.UsageError(f"sizes of {', '.join(lacking)} are missing; add --dim {lacking[0]}=N")
        kernels = [kernel if "body" in kernel else
                   {**kernel, "launches": [_launch_at(launch, sizes) for launch in launches_at(kernel, sizes)]}
                   for kernel in one["kernels"]]  # fmt: skip
        at = {"specialisation": number, "sizes": dict(sizes), "arena_bytes": value_of(program.arena_bytes, sizes)}
        return {**one, "kernels": kernels, "at": at}
    raise errors.UsageError("no specialisation runs these sizes; compile the model with --dim for them")


def _launch_at(launch: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    from tilestitch.runtime.sizes import value_of

    numbers = {key: value_of(launch[key], sizes) for key in ("tasks", "scratch_bytes") if key in launch}
    grid = {"grid": [value_of(blocks, sizes) for blocks in launch["grid"]]} if "grid" in launch else {}
    return {**launch, **numbers, **grid}


def _asked(explained: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the parts of an explanation that differ when it is limited to a node or an edge."""
    from tilestitch.passes.explanation import explain_edge, explain_node, knows

    nodes: Sequence[str] = options.edge or ([options.node] if options.node is not None else [])
    for node in nodes:
        if not knows(explained, node):
            raise errors.UsageError(f"nothing computes a node named {node!r}{_similar(explained, node)}")
    if options.node is not None:
        return explain_node(explained, options.node)
    if options.edge is not None:
        return {"host_steps": [], **explain_edge(explained, *options.edge)}
    return {}


def _similar(explained: Mapping[str, Any], node: str) -> str:
    import difflib

    known = {name for names in explained["origins"].values() for name in names}
    close = difflib.get_close_matches(node, sorted(known), 3)
    return f"; there is {', '.join(close)}" if close else "; it may have been folded away: `explain` lists all nodes"


def describe(explained: Mapping[str, Any], *, with_launches: bool = False, with_schedule: bool = False) -> str:
    """Return EXPLAINED as text."""
    kernels = explained["kernels"]
    nested = 0 if "node" in explained or "producer" in explained else kernels_in_bodies(explained)
    parts = [
        f"target {explained['target']}, planner {explained['planner']}, precision {explained['precision']}, "
        f"{len(kernels)} kernels" + (f" and {nested} in loops and branches" if nested else ""),
    ]
    if "producer" in explained:
        together = "are in one kernel" if kernels else "are in no kernel together"
        parts.append(f"{explained['producer']} and {explained['consumer']} {together}")
    parts.extend(_sizes(explained))
    parts.extend(_plain(explained))
    if explained["plugins"]:
        given = (f"{p['name']}{p['arguments']} ({p['owner']})" for p in explained["plugins"])
        parts.append(f"plug-ins: {', '.join(given)}")
    if kernels:
        parts.extend(_kernels(explained, with_launches))
    if nested:
        parts.extend(describe_bodies(explained, _launches if with_launches else None))
    if with_schedule:
        parts.append(_schedule(explained))
    parts.extend(_about(explained))
    if with_launches:
        parts.append(_launches(kernels))
        parts.extend(describe_machine_code(explained))
    parts.extend(_host_steps(explained))
    if explained.get("notes"):
        parts.append("notes of passes:")
        parts.extend(f"  {note['pass']}: {note['note']}" for note in explained["notes"])
    if explained["refusals"]:
        parts.append("not fused:")
        parts.extend(f"  {_refusal(explained, refusal)}" for refusal in explained["refusals"])
    return "\n".join(parts)


def _kernels(explained: Mapping[str, Any], with_launches: bool) -> Iterator[str]:
    kernels = explained["kernels"]
    yield kernel_table(explained)
    if with_launches and explained["target"] != "cpu":
        yield _waits(kernels)
        yield from _tiles(kernels)
    yield from describe_regions(kernels)
    yield from _in_slices(explained)


def _about(explained: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is inside the kernels of the node, or of the edge, that was asked about."""
    kernels = explained["kernels"]
    if "node" in explained:
        yield from (_inside(explained, kernel, kernel["stitches"]) for kernel in kernels)
    if "producer" in explained:
        yield from (_inside(explained, kernel, explained["stitches"]) for kernel in kernels[:1])
        if explained["remark"]:
            yield explained["remark"]


def _host_steps(explained: Mapping[str, Any]) -> Iterator[str]:
    if not explained["host_steps"]:
        return
    if "node" not in explained and explained["host"]["steps"]:
        yield _on_host(explained)
    yield "steps on the host:"
    yield from (f"  {step['op']}: {onnx_nodes(step)}" for step in explained["host_steps"])


def _plain(explained: Mapping[str, Any]) -> list[str]:
    """Return a summary of the counterpart without tile synchronisation, if the artifact has one."""
    plain = explained.get("plain")
    if plain is None:
        return []
    here, launches = (
        explained["prediction"]["total_us"],
        sum(len(kernel["launches"]) for kernel in explained["kernels"]),
    )
    return [
        f"{launches} launches, predicted {here} us; loaded with --no-sync {plain['launches']}, "
        f"predicted {plain['predicted_us']} us"
    ]


def _sizes(explained: Mapping[str, Any]) -> list[str]:
    """Return the sizes of this explanation, and of the artifact's other ones."""
    found = [f"compiled for {describe_sizes(symbols)}"] if (symbols := _symbols(explained)) else []
    if refused := explained.get("sizes", {}).get("refused"):
        found.append(f"{LEFT_OPEN}: {refused}")
    if "at" in explained:
        at = explained["at"]
        named = ", ".join(f"{name}={size}" for name, size in at["sizes"].items())
        found.append(f"at {named}: specialisation {at['specialisation'] + 1}, {at['arena_bytes']} bytes of memory")
    elif symbols:
        typical = ", ".join(f"{name}={size}" for name, size in explained["prediction"].get("sizes", {}).items())
        found.append(f"predictions are for {typical}")
    found += [
        f"{len(other['kernels'])} kernels and {other['host']['steps']} host steps more for {describe_sizes(symbols)}"
        for other in explained.get("specialisations", ())
        if (symbols := _symbols(other))
    ]
    return found


def _symbols(explained: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the symbols; none for artifacts of earlier versions."""
    found: Sequence[Mapping[str, Any]] = explained.get("sizes", {}).get("symbols", [])
    return found


def _on_host(explained: Mapping[str, Any]) -> str:
    """Return what runs on the host, why, and its share of the predicted time."""
    from tilestitch.passes.host_steps import describe_host, describe_share

    return f"{describe_host(explained['host'])}\n{describe_share(explained['host'])}"


def _in_slices(explained: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kernels that process a few images of a batch at a time."""
    for body, one in ((None, explained), *explained.get("calls", {}).items()):
        slices = one.get("slices") or {"symbol": "", "runs": []}
        count = one["prediction"].get("sizes", {}).get(slices["symbol"], 0)
        numbers = {k["name"]: k["number"] for k in explained["kernels"] if k.get("body") == body}
        for run in slices["runs"]:
            found, images = [numbers[name] for name in run["kernels"] if name in numbers], run["images"]
            all_at_once = images == "0" or (body is not None and images.isdigit() and int(images) >= count)
            if len(found) == len(run["kernels"]) > 1 and not all_at_once:
                some = f"{images} of {slices['symbol']} at a time"
                yield f"kernels {min(found)} to {max(found)}, one after the other, are run for {some}"


def _waits(kernels: Sequence[Mapping[str, Any]]) -> str:
    """Return which kernel waits for which, and through which values."""
    numbers = {(kernel.get("body"), kernel["name"]): f"{kernel['number']} {kernel['name']}" for kernel in kernels}
    rows = [
        (
            kernel["number"],
            numbers.get((kernel.get("body"), edge["after"]), edge["after"]),
            edge["kind"],
            edge["reason"],
        )
        for kernel in kernels
        for edge in kernel["sync"]
    ]
    return table(rows, ("#", "waits for", "how", "for the sake of")) if rows else "no kernel waits for another"


FORMS = {"tickets": "as one launch", "launches": "as launches that overlap"}
"""Descriptions of kernels whose tiles wait for tiles, by the kind of tie."""


def _tiles(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which tiles of a kernel wait for which others of it; nothing where none do."""
    drawing = [kernel for kernel in kernels if kernel.get("tiles")]
    if not drawing:
        return []
    rows = [
        (kernel["number"], f"{edge['producer']} -> {edge['consumer']}", edge["policy"], edge["semaphores"],
         *_gained(edge), ", ".join(f"%{value}" for value in edge["values"]))
        for kernel in drawing for edge in kernel["tiles"]
    ]  # fmt: skip
    gains = [
        f"{kernel['number']} {kernel['name']}: {apart['waves']} waves of blocks become {apart['waves_together']}; "
        f"predicted {kernel['predicted_us']} us {FORMS[kernel['tie']]}, apart {apart['predicted_us']} us"
        for kernel in drawing if (apart := kernel.get("apart"))
    ]  # fmt: skip
    bars = [bar for kernel in drawing for bar in _bars(kernel.get("timeline", ()))]
    titles = ("#", "tiles", "wait by policy", "semaphores", "waves", "saves", "for the sake of")
    return [table(rows, titles), *gains, *bars]


def _gained(edge: Mapping[str, Any]) -> tuple[str, str]:
    """Return the waves of both parts one after the other and together, and the time saved; empty for last-block
    reductions.
    """
    if "waves" not in edge:
        return "", ""
    return f"{edge['waves']} -> {edge['waves_together']}", f"{edge['saved_us']} us"


BAR = 48
"""Width of a timeline in characters."""


def _bars(timeline: Sequence[Mapping[str, Any]]) -> list[str]:
    """Draw when each launch runs with tiles tied, and without, as lines of characters."""
    if not timeline or len(timeline) > BAR:
        return []
    end_us = max(us for row in timeline for key in ("tied_us", "apart_us") for us in row[key]) or 1.0

    def bar(span: Sequence[float]) -> str:
        first, last = (round(BAR * us / end_us) for us in span)
        return f"|{' ' * first}{'#' * max(1, last - first)}".ljust(BAR + 2) + f"| {span[0]:.1f} to {span[1]:.1f} us"

    return [
        f"{'tied ' if key == 'tied_us' else 'apart'} {bar(row[key])}  {row['part']}"
        for key in ("tied_us", "apart_us")
        for row in timeline
    ]


def _schedule(explained: Mapping[str, Any]) -> str:
    """Return when each launch is predicted to run, and the critical path."""
    schedule, device = explained["schedule"], explained["prediction"]["device"]
    launches = schedule["launches"]
    rows = [
        (
            f"{one['start_us']:.1f}", f"{one['end_us']:.1f}", one["branch"], one["priority"],
            f"{'* ' if one['critical'] else '  '}{one['kernel']}", len(one["beside"]), one["why"],
        )
        for one in sorted(launches, key=lambda one: (one["start_us"], one["branch"]))
    ]  # fmt: skip
    path = [launches[number] for number in schedule["critical_path"]]
    longer = schedule["arena_bytes"] - schedule["one_at_a_time_bytes"]
    return "\n".join((
        table(rows, ("start us", "end us", "branch", "priority", "kernel", "beside", "why not earlier")),
        f"predicted on {device}: {schedule['makespan_us']:.1f} us, one launch at a time "
        f"{schedule['one_at_a_time_us']:.1f} us; the memory of values takes {longer} bytes more for that",
        f"critical path (*): {len(path)} launches, {sum(one['alone_us'] for one in path):.1f} us if nothing else ran",
    ))  # fmt: skip


def _launches(kernels: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each launch; on a GPU, one for each architecture that it was compiled for."""
    rows: list[tuple[object, ...]] = []
    for kernel in kernels:
        index = kernel["number"]
        for launch in kernel["launches"]:
            if "tasks" in launch:
                rows.append((index, launch["symbol"], launch["tasks"], launch["scratch_bytes"]))
                continue
            extents = ("x".join(map(str, launch["grid"])), "x".join(map(str, launch["block"])))
            for code in launch["machine_code"] or [{}]:
                needs = (code.get(key, "-") for key in ("architecture", "registers", "local_bytes", "blocks_per_sm"))
                shared_bytes = launch["shared_bytes"] + code.get("shared_bytes", launch["static_shared_bytes"])
                rows.append((index, launch["symbol"], *extents, shared_bytes, *needs))
    if not rows:
        return "no launches"
    on_cpu = ("#", "symbol", "tasks", "scratch bytes")
    on_gpu = ("#", "symbol", "grid", "block", "shared bytes", "compiled for", "registers", "local bytes", "blocks/SM")
    return table(rows, on_cpu if len(rows[0]) == len(on_cpu) else on_gpu)


def _inside(explained: Mapping[str, Any], kernel: Mapping[str, Any], stitches: Sequence[Mapping[str, Any]]) -> str:
    """Return a kernel's traffic, and the scheme by which each value is passed within it."""
    from tilestitch.passes.explanation import with_origins

    device = explained["prediction"]["device"]
    head = (
        f"{kernel['name']} reads {kernel['bytes_read']} and writes {kernel['bytes_written']} bytes; "
        f"predicted: {kernel['predicted_us']} us on {device}{_bound(kernel)}"
    )
    head = "\n".join([head, *_multiplied(kernel), *_kept(kernel)])
    edges = (with_origins(explained, f"{s['producer']} -> {s['consumer']}") for s in stitches)
    rows = [(f"  {edge}", s["scheme"], s["rule"]) for edge, s in zip(edges, stitches, strict=True)]
    return head if not rows else f"{head}\n{table(rows, ('  stitched', 'scheme', 'by rule'))}"


def _kept(kernel: Mapping[str, Any]) -> list[str]:
    """Return the values that it keeps as rounded floats; nothing for artifacts of earlier versions."""
    floats = kernel.get("floats")
    return [f"  keeps as floats, rounded and in range: {', '.join(f'%{name}' for name in floats)}"] if floats else []


def _multiplied(kernel: Mapping[str, Any]) -> list[str]:
    """Return what its matmuls and convolutions multiply; nothing for artifacts of earlier versions."""
    by = f" by {', '.join(kernel['instructions'])}" if kernel.get("instructions") else ""
    return [
        f"  {', '.join(one['onnx_nodes']) or one['node']}: multiplies {' by '.join(one['operands'])}{by}, "
        f"gives {one['result']}{_pair(one)}"
        for one in kernel.get("multiplies", ())
    ]


def _pair(multiplied: Mapping[str, Any]) -> str:
    """Return why `vpmaddubsw` does not multiply; "" where weights are no reason."""
    pair = multiplied.get("largest_pair")
    return "" if pair is None else f"; vpmaddubsw would saturate: two weights of one sign sum to {pair}, not to 128"


def _refusal(explained: Mapping[str, Any], refusal: Mapping[str, Any]) -> str:
    from tilestitch.passes.explanation import with_origins

    numbers = ", ".join(f"{name}={value}" for name, value in refusal["numbers"].items())
    subject = with_origins(explained, refusal["subject"])
    return f"{subject}: {refusal['reason']} [{refusal['rule']}]{f' ({numbers})' if numbers else ''}"


def _bound(kernel: Mapping[str, Any]) -> str:
    """Return what bounds a kernel's time, if the model says so; empty for artifacts of earlier versions."""
    return f", bound by {kernel['bound']}" if kernel.get("bound") else ""
