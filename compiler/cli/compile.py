"""Compiles an ONNX model into an artifact.

  tilestitch compile model.onnx -o model.tsm

Dimensions that the model leaves open are compiled for all sizes, on CPUs; --dim gives them ranges. --shape fixes the
sizes of an input instead. A name given again begins another set of shapes: the artifact holds one specialisation for
each set and picks the one that fits when it runs.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json, parse_dim, parse_shape, positive, shape_sets
from tilestitch.compiler.cli.inputs import parse_sizes, sizes_of
from tilestitch.compiler.cli.output import Progress, describe_sizes, give, note, say, warn
from tilestitch.compiler.cli.paths import existing, writable, writable_folder

SUMMARY = "compile an ONNX model into an artifact"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
PLANNERS = ("stitch", "explore", "xla", "injective", "none")
COST_MODELS = ("analytical", "learned", "random")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.tsm", help="the artifact to write")
    add_compile_options(parser)
    parser.add_argument("--report", metavar="REPORT.html", help="write a page that shows what became of the graph")
    add_json(parser)


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", default="cpu", help="cpu: the CPU of this machine (default); cuda:sm_90a, cuda:h200: GPUs"
    )
    parser.add_argument(
        "--shape", action="append", type=parse_shape, default=[], metavar="NAME=1x3x224x224", help="shape of an input"
    )
    parser.add_argument(
        "--dim", action="append", type=parse_dim, default=[], metavar="NAME=1..64",
        help="range of an open dimension (default: from 1 on)",
    )  # fmt: skip
    parser.add_argument(
        "--favour", action="append", type=parse_sizes, default=[], metavar="NAME=1[,NAME=128]…",
        help="sizes of open dimensions that deserve kernels of their own",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="of float32 matmuls and convolutions (default: fp32)"
    )
    parser.add_argument(
        "--keep-fp32", action="append", default=[], metavar="NODE",
        help="an ONNX node (or a pattern: '/encoder/layer.0/*') that stays float32; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--no-winograd", action="store_true", help="compute convolutions on CPUs as they are written, which is slower"
    )  # fmt: skip
    parser.add_argument(
        "--pass",
        action="append",
        dest="passes",
        default=[],
        metavar="MODULE:CLASS{field=value}",
        help="add a plug-in: a pass, a fusion rule, a schedule or a cost model; may be repeated",
    )
    parser.add_argument("--no-plugins", action="store_true", help="leave out the plug-ins of installed packages")
    parser.add_argument("--plan", metavar="PLAN.json", help="use this plan instead of making one")
    parser.add_argument("--planner", choices=PLANNERS, default="stitch", help="how operators are grouped into kernels")
    parser.add_argument(
        "--cost-model", metavar="MODEL", help=f"what predicts kernels' times: {', '.join(COST_MODELS)}, or FILE.json"
    )
    parser.add_argument("--plan-budget", type=float, metavar="S", help="seconds that a search for plans may take")
    parser.add_argument("--records", metavar="FILE", help="measured kernels of this machine take what they took")
    parser.add_argument("--frozen", action="store_true", help="take the records whatever machine this is")
    parser.add_argument(
        "--sync",
        default="off",
        metavar="auto|model|off|POLICY[/FORM]",
        help="whether kernels wait for tiles of others; a policy by its name or MODULE:CLASS{field=value}, and the "
        "form that chains take: tickets or launches",
    )
    parser.add_argument("--no-host", action="store_true", help="refuse a model of which a part would run with numpy")
    parser.add_argument(
        "--donate", action="append", default=[], metavar="INPUT",
        help="a cache (or a pattern: 'past_*') that grows in memory that the runtime is given",
    )  # fmt: skip
    parser.add_argument("--strip-weights", action="store_true", help="leave the weights out; they are supplied at load")
    parser.add_argument("--dump-ir", metavar="DIR", help="write the graph after every pass there")
    parser.add_argument("--threads", type=positive, metavar="N", help="threads that the plan is made for")
    parser.add_argument(
        "--branch-memory", type=_nbytes, metavar="BYTES",
        help="memory of values that launches side by side on a GPU may take besides (default: as much as they want)",
    )  # fmt: skip
    parser.add_argument("--keep-source", action="store_true", help="keep the kernels' source in the artifact")
    parser.add_argument("--cache", metavar="DIR|off", help="keep compiled kernels there (default: in ~/.cache)")
    parser.add_argument("--nvcc", metavar="PATH", help="compile CUDA with this nvcc instead of NVRTC")


def _nbytes(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; give 0 or more")
    return int(text)


def run(options: argparse.Namespace) -> int:
    target, report = _files(options)
    source = existing(options.model)
    start = time.perf_counter()
    with Progress() as progress:
        compiled = compile_with(source, options, progress, report)
        progress("writing the artifact")
        compiled.save(target)
    seconds = time.perf_counter() - start
    explained = compiled.explain()
    facts = summary(explained, target, seconds)
    for tell, told in _remarks([explained, *explained.get("specialisations", ())]):
        tell(told)
    if options.json:
        give(facts)
    else:
        say(f"{target}: {facts['kernels']} kernels, {_size(facts['bytes'])}, compiled in {seconds:.1f} s")
        for sizes in filter(None, facts["sizes"]):
            say(f"compiled for {describe_sizes(sizes)}")
        if report is not None:
            say(f"report: {report}")
    return errors.OK


def _files(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """The artifact and the report to write. Raises UsageError unless every output is a file of its own."""
    from tilestitch.runtime.artifact import weights_path

    taken: list[str | Path | None] = [options.model, options.plan]
    outputs = [str(writable(options.output, taken))]
    if options.strip_weights:
        outputs.append(str(weights_path(options.output)))
    if options.report is not None:
        outputs.append(options.report)
    if any(map(os.path.exists, outputs)):
        taken += _external_files(Path(options.model))
    for output in outputs:
        writable(output, taken)
        taken.append(output)
    if options.dump_ir is not None:
        writable_folder(options.dump_ir, taken)
    return Path(options.output), None if options.report is None else Path(options.report)


def _external_files(model: Path) -> list[Path]:
    """The files beside a model that hold its weights; none if it cannot be read, which is told later."""
    if not model.is_file():
        return []
    from tilestitch.compiler.frontend.errors import ModelError
    from tilestitch.compiler.frontend.importer import external_files

    try:
        return external_files(model)
    except ModelError:
        return []


def compile_with(source: Any, options: argparse.Namespace, progress: Progress, report: Path | None = None) -> Any:
    """Calls `compile_model` as the options say; SOURCE is a path or a ModelProto."""
    check_target(options.target)
    cache = _cache(options)
    from tilestitch.compiler.driver import compile_model

    return compile_model(
        source,
        options.target,
        shapes=shape_sets(options.shape),
        dims=_ranges(options.dim),
        favour=[sizes_of(point, "--favour") for point in options.favour],
        precision=options.precision,
        keep_fp32=options.keep_fp32,
        passes=_passes(options.passes),
        installed_plugins=not options.no_plugins,
        plan=None if options.plan is None else existing(options.plan),
        planner=options.planner,
        cost_model=options.cost_model,
        sync=options.sync,
        records=None if options.records is None else existing(options.records),
        frozen=options.frozen,
        plan_budget_s=options.plan_budget,
        strip_weights=options.strip_weights,
        dump_ir=options.dump_ir,
        report=report,
        num_threads=options.threads,
        keep_source=options.keep_source,
        cache=cache,
        nvcc=options.nvcc,
        host_steps=not options.no_host,
        donate=options.donate,
        winograd=not options.no_winograd,
        branch_bytes=options.branch_memory,
        progress=progress,
    )


def _ranges(pairs: Sequence[tuple[str, tuple[int, int]]]) -> dict[str, tuple[int, int]] | None:
    """Ranges by name of dimension; None if there are none. Raises UsageError for one that is given twice."""
    ranges: dict[str, tuple[int, int]] = {}
    for name, sizes in pairs:
        if ranges.setdefault(name, sizes) != sizes:
            (low, high), (other_low, other_high) = ranges[name], sizes
            raise errors.UsageError(
                f"--dim {name} is given as {low}..{high} and as {other_low}..{other_high}; give it once, and with "
                "--favour the sizes that deserve kernels of their own"
            )
    return ranges or None


def _passes(texts: Sequence[str]) -> tuple[str, ...]:
    """Raises UsageError for an empty text, as an unset variable of a shell leaves it."""
    if not all(text.strip() for text in texts):
        raise errors.UsageError("--pass names no plug-in; give MODULE:CLASS{field=value}, or leave it out")
    return tuple(texts)


def _cache(options: argparse.Namespace) -> Path | bool:
    """What `compile_model` takes as `cache`. Raises UsageError for what does nothing for the target."""
    kind = options.target.split(":")[0]
    if options.nvcc is not None and kind != "cuda":
        raise errors.UsageError(f"--nvcc is about compiling CUDA; it does nothing for --target {options.target}")
    if options.cache is not None and kind == "emulator":
        raise errors.UsageError(f"--cache keeps compiled kernels; for --target {options.target} none are compiled")
    if options.cache is None or options.cache == "off":
        return options.cache is None
    if not options.cache:
        raise errors.UsageError("--cache names no folder; name one, or give off")
    if options.cache.lower() == "off":
        raise errors.UsageError(f"--cache {options.cache}: write off, or ./{options.cache} for a folder of this name")
    folder = Path(options.cache)
    if folder.exists() and not folder.is_dir():
        raise errors.UsageError(f"--cache {folder} is a file; name a folder")
    return folder


def check_target(target: str) -> None:
    """Raises UsageError unless TARGET can be compiled for; before TVM is imported, which takes a while."""
    if target.split(":")[0] not in ("cpu", "cuda", "emulator"):
        raise errors.UsageError(
            f"--target {target!r} is not available; give cpu, cpu:NAME, cuda:sm_90a, cuda:h200, or emulator"
        )


def _remarks(specialisations: Sequence[Mapping[str, Any]]) -> Sequence[tuple[Callable[[str], None], str]]:
    """Why sizes are left open to the host, and what runs there; once for all specialisations that are alike in it, and
    as a warning if it is more than a trace.
    """
    from tilestitch.passes.host_steps import TRACE, describe_host, describe_share

    refused = dict.fromkeys(one["sizes"]["refused"] for one in specialisations if one["sizes"]["refused"])
    hosts: dict[str, Mapping[str, Any]] = {}
    for one in specialisations:
        if any(symbol["high"] == 0 for symbol in one["sizes"]["symbols"]):
            continue  # little is computed where a size is 0
        hosts.setdefault(describe_host(one["host"]), one["host"])
    hosts.pop("", None)  # everything is in kernels
    remarks = [(warn, f"open dimensions are left to the host, for not all sizes can be compiled: {r}") for r in refused]
    return remarks + [
        (note if host["predicted_share_at_least"] <= TRACE else warn, f"{told}\n{describe_share(host)}")
        for told, host in hosts.items()
    ]


def summary(explained: dict[str, Any], target: Path, seconds: float) -> dict[str, Any]:
    """The result of `compile --json`."""
    return {
        "artifact": str(target),
        "bytes": target.stat().st_size,
        "seconds": round(seconds, 3),
        "target": explained["target"],
        "planner": explained["planner"],
        "precision": explained["precision"],
        "kernels": len(explained["kernels"]),
        "refusals": len(explained["refusals"]),
        "host": explained["host"],
        "sizes": [one["sizes"]["symbols"] for one in (explained, *explained.get("specialisations", ()))],
    }


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
