"""Compiles an ONNX model into an artifact.

  tilestitch compile model.onnx -o model.tsm
  tilestitch compile model.onnx -o model.tsm --target cuda:h200 --precision fp16
  tilestitch compile model.onnx -o model.tsm --dim batch=1..64 --favour batch=1

A model with open dimensions is compiled for all their sizes; --dim narrows the ranges, and --shape fixes the sizes of
an input instead. If --shape names an input again, that begins another set of shapes: the artifact holds a
specialisation for each set, and a run uses the one that fits.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json, parse_dim, parse_shape, positive, shape_sets
from tilestitch.compiler.cli.inputs import parse_sizes, sizes_of
from tilestitch.compiler.cli.output import LEFT_OPEN, Progress, describe_sizes, give, note, say, warn
from tilestitch.compiler.cli.paths import existing, writable, writable_folder

SUMMARY = "compile an ONNX model into an artifact"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
PLANNERS = ("stitch", "explore", "xla", "injective", "none")
COST_MODELS = ("analytical", "learned", "random")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx", help="the model to compile")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.tsm", help="the artifact to write")
    add_compile_options(parser)
    add_report(parser)
    add_json(parser)


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report", metavar="REPORT.html", help="write a page about the graph, its kernels and refusals"
    )


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for compiling a model, in groups for --help."""
    parser.add_argument(
        "--target", default="cpu",
        help="what to compile for: cpu, this machine's CPU (default); cpu:NAME, another CPU by LLVM's name; "
        "cuda:sm_90a, cuda:h200, cuda:sm_80,sm_90a, GPUs by architecture or name; emulator, the emulated GPU",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads to divide the work for (default: all cores)"
    )
    _add_sizes(parser.add_argument_group("sizes of open dimensions"))
    _add_arithmetic(parser.add_argument_group("arithmetic"))
    _add_planning(parser.add_argument_group("planning"))
    _add_plugins(parser.add_argument_group("plug-ins"))
    _add_artifact(parser.add_argument_group("what is written, and how kernels are compiled"))


_Group = argparse._ArgumentGroup


def _add_sizes(group: _Group) -> None:
    group.add_argument(
        "--shape", action="append", type=parse_shape, default=[], metavar="NAME=1x3x224x224",
        help="shape of an input; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--dim", action="append", type=parse_dim, default=[], metavar="NAME=1..64",
        help="range of an open dimension (default: from 1 on); may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--favour", action="append", type=parse_sizes, default=[], metavar="NAME=1[,NAME=128]…",
        help="sizes of open dimensions that get kernels of their own; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--donate", action="append", default=[], metavar="INPUT",
        help="a cache, or a pattern such as 'past_*', that grows in memory that the caller provides; may be repeated",
    )  # fmt: skip
    group.add_argument("--no-host", action="store_true", help="refuse a model if a part of it would run with numpy")


def _add_arithmetic(group: _Group) -> None:
    group.add_argument(
        "--precision", choices=PRECISIONS, default="fp32",
        help="precision of matmuls and convolutions of float32 operands (default: fp32)",
    )  # fmt: skip
    group.add_argument(
        "--keep-fp32", action="append", default=[], metavar="NODE",
        help="an ONNX node, or a pattern such as '/encoder/layer.0/*', that stays float32; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--no-winograd", action="store_true",
        help="do not use Winograd's algorithm for convolutions on CPUs: slower, but rounds as the model is written",
    )  # fmt: skip


def _add_planning(group: _Group) -> None:
    group.add_argument("--planner", choices=PLANNERS, default="stitch", help="how operators are grouped into kernels")
    group.add_argument(
        "--cost-model", metavar="MODEL",
        help=f"what predicts the latency of kernels: {', '.join(COST_MODELS)}, or FILE.json (default: a plug-in, or "
        "analytical)",
    )  # fmt: skip
    group.add_argument(
        "--plan-budget", type=float, metavar="S", help="seconds that each search for a better plan may take"
    )
    group.add_argument("--records", metavar="FILE", help="use these measured latencies of kernels on this machine")
    group.add_argument("--frozen", action="store_true", help="use the records even if this is another machine")
    group.add_argument(
        "--plan", metavar="PLAN.json", help="use this plan, or that of an artifact, instead of making one"
    )
    group.add_argument(
        "--sync", default="off", metavar="auto|model|off|POLICY[/FORM]",
        help="GPUs: whether kernels wait for single tiles of other kernels (default: off). A policy is tile, row, "
        "strided, kernel or MODULE:CLASS{field=value}; a form is tickets or launches",
    )  # fmt: skip
    group.add_argument(
        "--branch-memory", type=_nbytes, metavar="BYTES",
        help="GPUs: extra memory that concurrent launches may use (default: no limit)",
    )  # fmt: skip


def _add_plugins(group: _Group) -> None:
    group.add_argument(
        "--pass", action="append", dest="passes", default=[], metavar="MODULE:CLASS{field=value}",
        help="add a pass, a fusion rule, a schedule or a cost model; may be repeated",
    )  # fmt: skip
    group.add_argument("--no-plugins", action="store_true", help="ignore the plug-ins of installed packages")


def _add_artifact(group: _Group) -> None:
    group.add_argument(
        "--strip-weights", action="store_true", help="write the weights to OUT.tsm.weights.safetensors instead"
    )
    group.add_argument("--keep-source", action="store_true", help="keep the source text of kernels in the artifact")
    group.add_argument("--dump-ir", metavar="DIR", help="write the graph after every pass to this folder")
    group.add_argument(
        "--cache", metavar="DIR|off", help="where compiled kernels are cached (default: ~/.cache/tilestitch/kernels)"
    )
    group.add_argument("--nvcc", metavar="PATH", help="compile CUDA with this nvcc instead of NVRTC")


def _nbytes(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; give 0 or more")
    return int(text)


def run(options: argparse.Namespace) -> int:
    target, report = output_files(options)
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


def output_files(options: argparse.Namespace, read: Sequence[str] = ()) -> tuple[Path, Path | None]:
    """Return the paths of the artifact and the report. read: files that are read besides the model and the plan.

    Raises UsageError unless every output is a file of its own.
    """
    from tilestitch.runtime.artifact_writer import weights_path

    taken: list[str | Path | None] = [options.model, options.plan, *read]
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
    """Return the files beside a model that hold its weights; none if it cannot be read, which is reported later."""
    if not model.is_file():
        return []
    from tilestitch.compiler.frontend.errors import ModelError
    from tilestitch.compiler.frontend.importer import external_files

    try:
        return external_files(model)
    except ModelError:
        return []


def compile_with(source: Any, options: argparse.Namespace, progress: Progress, report: Path | None = None) -> Any:
    """Call `compile_model` with the options; SOURCE is a path or a ModelProto."""
    arguments = compile_arguments(options)
    from tilestitch.compiler.driver import compile_model

    return compile_model(source, options.target, **arguments, report=report, progress=progress)


def compile_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `compile_model` that the options say. Raises UsageError for invalid ones."""
    check_target(options.target)
    return {
        "shapes": shape_sets(options.shape),
        "dims": _ranges(options.dim),
        "favour": [sizes_of(point, "--favour") for point in options.favour],
        "precision": options.precision,
        "keep_fp32": options.keep_fp32,
        "passes": _passes(options.passes),
        "installed_plugins": not options.no_plugins,
        "plan": None if options.plan is None else existing(options.plan),
        "planner": options.planner,
        "cost_model": options.cost_model,
        "sync": options.sync,
        "records": None if options.records is None else existing(options.records),
        "frozen": options.frozen,
        "plan_budget_s": options.plan_budget,
        "strip_weights": options.strip_weights,
        "dump_ir": options.dump_ir,
        "num_threads": options.threads,
        "keep_source": options.keep_source,
        "cache": _cache(options),
        "nvcc": options.nvcc,
        "host_steps": not options.no_host,
        "donate": options.donate,
        "winograd": not options.no_winograd,
        "branch_bytes": options.branch_memory,
    }


def _ranges(pairs: Sequence[tuple[str, tuple[int, int]]]) -> dict[str, tuple[int, int]] | None:
    """Return the ranges by name of dimension; None if there are none. Raises UsageError for a repeated name."""
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
    """Return the plug-ins. Raises UsageError for an empty text, which an unset variable of a shell results in."""
    if not all(text.strip() for text in texts):
        raise errors.UsageError("--pass names no plug-in; give MODULE:CLASS{field=value}, or leave it out")
    return tuple(texts)


def _cache(options: argparse.Namespace) -> Path | bool:
    """Return the argument `cache` of `compile_model`. Raises UsageError for options without effect on the target."""
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
    """Raise UsageError for an unknown kind of target, before TVM is imported, which takes a while."""
    if target.split(":")[0] not in ("cpu", "cuda", "emulator"):
        raise errors.UsageError(
            f"--target {target!r} is not available; give cpu, cpu:NAME, cuda:sm_90a, cuda:h200, or emulator"
        )


def _remarks(specialisations: Sequence[Mapping[str, Any]]) -> Sequence[tuple[Callable[[str], None], str]]:
    """Return why sizes are left open to the host, and what runs there; once for all similar specialisations, and as a
    warning if it is more than a trace.
    """
    from tilestitch.passes.host_steps import TRACE, describe_host, describe_share

    refused = dict.fromkeys(one["sizes"]["refused"] for one in specialisations if one["sizes"]["refused"])
    hosts: dict[str, Mapping[str, Any]] = {}
    for one in specialisations:
        if any(symbol["high"] == 0 for symbol in one["sizes"]["symbols"]):
            continue  # little is computed where a size is 0
        hosts.setdefault(describe_host(one["host"]), one["host"])
    hosts.pop("", None)  # everything is in kernels
    remarks = [(warn, f"{LEFT_OPEN}: {reason}") for reason in refused]
    return remarks + [
        (note if host["predicted_share_at_least"] <= TRACE else warn, f"{told}\n{describe_share(host)}")
        for told, host in hosts.items()
    ]


def summary(explained: dict[str, Any], target: Path, seconds: float) -> dict[str, Any]:
    """Return the result of `compile --json`."""
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
