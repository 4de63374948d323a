"""From an ONNX model to an artifact: the one function that drives frontend, passes and code generation.

compile_model("model.onnx", shapes={"x": (1, 3, 224, 224)}).save("model.tsm")
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.codegen.errors import CodegenError
from tilestitch.compiler.frontend import FrontendError
from tilestitch.compiler.ir.errors import IRError
from tilestitch.passes.contract import PassContext
from tilestitch.passes.errors import PassError, PluginWarning
from tilestitch.passes.plan import StitchPlan

from .collection import rare_collections
from .compiled import CompiledModel, explained
from .errors import OpenSizeError, OptionError
from .latency_models import chosen_model, with_records
from .options import Options
from .plan_files import load_plans
from .prepare import Job, Prepared, Progress, naming_values
from .sources import Source, opened
from .specialise import Region, ShapeSet, favoured_regions, regions_of, scopes_of, shape_sets_of
from .targets import backend_of

if TYPE_CHECKING:
    import onnx
    import torch

    from tilestitch.codegen.assemble import Assembled
    from tilestitch.codegen.backend import Backend
    from tilestitch.passes.plan import PluginRecord
    from tilestitch.passes.plugins.load import LoadedPlugins, Named
    from tilestitch.passes.sync.policies import Policy

__all__ = ["CompiledModel", "compile_model"]

_REFUSALS = (FrontendError, IRError, PassError, CodegenError, OpenSizeError)
"""Exceptions that may mean, among other reasons, that a model cannot be compiled for all sizes."""


def compile_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | torch.nn.Module | Any,
    target: str = "cpu",
    *,
    example_inputs: Any = None,
    external_data: str | os.PathLike[str] | None = None,
    shapes: ShapeSet | Sequence[ShapeSet] | None = (),
    dims: Mapping[str, tuple[int, int]] | None = None,
    favour: Sequence[Mapping[str, int]] = (),
    precision: str = "fp32",
    keep_fp32: Sequence[str] = (),
    winograd: bool = True,
    passes: Sequence[Named] | Named | None = (),
    installed_plugins: bool = True,
    plan: StitchPlan | Sequence[StitchPlan] | str | os.PathLike[str] | None = None,
    planner: str = "stitch",
    cost_model: str | None = None,
    sync: str | Policy = "off",
    records: str | os.PathLike[str] | None = None,
    frozen: bool = False,
    plan_budget_s: float | None = None,
    strip_weights: bool = False,
    dump_ir: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    keep_source: bool = False,
    cache: str | os.PathLike[str] | bool = True,
    nvcc: str | None = None,
    expose: Sequence[str] = (),
    host_steps: bool = True,
    donate: Sequence[str] = (),
    branch_bytes: int | None = None,
    progress: Progress | None = None,
) -> CompiledModel:
    """Compile an ONNX model.

    model: a path, the bytes of an ONNX file, a ModelProto, or one of PyTorch's: an nn.Module, an ExportedProgram
        (both go through `torch.onnx.export`), or an ONNXProgram.
    example_inputs: what an nn.Module is exported with: a tensor, a tuple of arguments, or a dict of keyword arguments.
        It fixes the shapes; for open dimensions, export the module with `dynamic_shapes` and pass the result.
    external_data: the folder with the external tensors of a ModelProto, or of bytes.
    target: `cpu`, or `cpu:NAME` for another CPU than this one (an LLVM CPU name); `cuda:sm_90a`, `cuda:h200` or
        several such names with commas between them, for which no GPU is needed; `emulator`: the same kernels as text
        only, for the emulated device.
    shapes: shapes of inputs by name, for dimensions that the model leaves open; several such sets give an artifact
        with one specialisation each.
    dims: the least and the largest size of dimensions that the model leaves open, by name; others have a default range
        (docs/dynamic_shapes.md). None: all have it; if not all of their sizes can be compiled, operators with open
        sizes are left to the host.
    favour: points of sizes, by name of dimension, that get a specialisation of their own; the others stay open.
    precision: of contractions with float32 operands: fp32 (float32 stays float32), tf32 (GPUs), fp16 or bf16. Sums and
        statistics are float32 always; `passes.rewrite.precision` has the whole table.
    keep_fp32: names of ONNX nodes, or patterns (`/encoder/layer.0/*`), whose matmuls and convolutions stay float32.
    winograd: whether CPUs may compute convolutions of 3 x 3 taps by Winograd's algorithm, which rounds differently.
    passes: plug-ins: instances, classes, or texts `MODULE:CLASS{field=value}`. installed_plugins: whether to use those
        of installed packages, too.
    plan: replay this StitchPlan (of several specialisations: all `plans` of a CompiledModel), or a file's, instead of
        planning; the plan has its sizes. planner: stitch, explore, xla, injective or none.
    cost_model: the latency model of kernels: analytical, learned, random, or a file written by training; default: a
        plug-in's if there is one, else analytical.
    records: a file of measured kernels, whose times on this machine are used; the model predicts all others. frozen:
        use the records on any machine, so that the artifact depends on the file alone; it has records of one machine.
    plan_budget_s: seconds for each search for a better plan; 0: the plan of the rules; default: a budget of work, the
        same on every machine.
    strip_weights: leave the weights out of the artifact.
    dump_ir: a folder for the graph after every pass, and for views of the final one. report: path of an HTML report.
    num_threads: threads for which tasks are sized, or processes that compile CUDA (default: all cores).
    keep_source: put TIR and LLVM text, or the CUDA text, of the kernels into the artifact.
    cache: folder in which compiled kernels are cached; True is the user's cache folder, False none. The artifact is the
        same. A folder that cannot be written is a CacheWarning.
    nvcc: path of a CUDA compiler to use instead of NVRTC.
    host_steps: whether operators without a kernel may run on the host with numpy. If not, HostStepsError names them.
    donate: patterns of the names of caches that a decoder grows (`past_*`): their new rows are stored in place, if the
        runtime may write to their memory (`load(..., donate=...)`).
    branch_bytes: bytes of GPU memory, beyond what sequential launches need, that values may take so that launches can
        run concurrently; None: as many as that takes.
    expose: names of ONNX values to add to the outputs; with `plan`, of values that its kernels store (`outputs` of
        `explain`).

    Raises OptionError, ExportError, OpenSizeError, and the errors of frontend, passes and code generation; each message
    ends with what to do.
    """
    options = Options(
        target=target, shapes=shapes, dims=dims, favour=favour, precision=precision, keep_fp32=keep_fp32,
        winograd=winograd, passes=passes, installed_plugins=installed_plugins, plan=plan, planner=planner,
        cost_model=cost_model, sync=sync, records=records, frozen=frozen, plan_budget_s=plan_budget_s,
        strip_weights=strip_weights, dump_ir=dump_ir, report=report, num_threads=num_threads, keep_source=keep_source,
        cache=cache, nvcc=nvcc, expose=expose, host_steps=host_steps, donate=donate, branch_bytes=branch_bytes,
        progress=progress,
    )  # fmt: skip
    given_sync, policies = _synchronisation(sync, target)
    threads = num_threads or len(os.sched_getaffinity(0))
    backend = backend_of(target, threads, cache, nvcc)
    plugins = _plugins(options)
    shape_sets, regions = shape_sets_of(shapes), regions_of(dims, plan is not None)
    favoured = favoured_regions(favour, regions)
    context = _context(options, backend, threads, plugins, given_sync, policies)
    replayed = None if plan is None else load_plans(plan)
    scopes = None if replayed is None else scopes_of(replayed, shape_sets, [*favoured, *regions], len(favoured))
    from tilestitch.compiler.frontend.tensors import noting_mapped_files

    with rare_collections(), noting_mapped_files() as mapped, opened(model, example_inputs, external_data) as source:
        job = Job(
            source, context, plugins.passes, tuple(expose), replayed, _recorded(options, threads),
            Path(dump_ir) if dump_ir else None, host_steps, donate=tuple(donate), scopes=scopes,
        )  # fmt: skip
        compilation = _Compilation(options, job, backend, plugins, shape_sets, len(favoured))
        try:
            compiled = compilation.compiled([*favoured, *regions])
        except _REFUSALS as error:
            if dims is not None or favoured or donate or scopes is not None:
                raise
            compiled = _with_open_on_host(compilation, error)
        compiled = replace(compiled, mapped=frozenset(mapped))
        if report is not None:
            _write_report(report, source, compiled)
    return compiled


@dataclass(frozen=True)
class _Compilation:
    """A compilation job and its backend. `favoured`: number of favoured points among the regions."""

    options: Options
    job: Job
    backend: Backend
    plugins: LoadedPlugins
    shape_sets: Sequence[ShapeSet]
    favoured: int

    def compiled(self, regions: Sequence[Region | None]) -> CompiledModel:
        """Plan and generate code for all sets of shapes and regions of open sizes. Optional specialisations without
        kernels, as code generation refuses these, are left out.
        """
        prepared = self._prepared(self.job, regions)
        plain = self._counterparts(prepared, regions)
        try:
            assembled = self._assembled([*prepared, *plain])
        except _REFUSALS:
            both = [*zip(prepared, plain, strict=True)] if plain else [(p,) for p in prepared]
            kept = self._with_kernels(both)
            if len(kept) == len(both):
                raise
            prepared, plain = [each[0] for each in kept], [p for each in kept for p in each[1:]]
            assembled = self._assembled([*prepared, *plain])
        context = self.job.context
        return explained(assembled, prepared, plain, self.options.precision, self.options.strip_weights, context)

    def _assembled(self, prepared: Sequence[Prepared]) -> Assembled:
        from tilestitch.codegen.assemble import assemble

        planned = [p.planned for p in prepared]
        with naming_values([p.graph for p in planned]):
            return assemble(
                planned, self.backend, keep_source=self.options.keep_source, progress=self._tell,
                schedules=self.plugins.schedules,
            )  # fmt: skip

    def _with_kernels(self, both: Sequence[Sequence[Prepared]]) -> list[Sequence[Prepared]]:
        """Return the specialisations, each with its counterpart if there are any, without the optional ones for which
        no code can be generated. Raises the error of one that is not optional.
        """
        self._assembled([p for each in both for p in each if not each[0].optional])
        return [each for each in both if not each[0].optional or self._compiles(each)]

    def _compiles(self, prepared: Sequence[Prepared]) -> bool:
        try:
            self._assembled(prepared)
        except _REFUSALS:
            return False
        return True

    def _counterparts(self, prepared: Sequence[Prepared], regions: Sequence[Region | None]) -> list[Prepared]:
        """Return counterparts without tile synchronisation if kernels wait for tiles of others, else none."""
        from tilestitch.passes.sync.policies import TIES_OF_TILES

        if not any(group.tie in TIES_OF_TILES for p in prepared for group in p.planned.plan.groups):
            return []
        context = self.job.context
        apart = replace(context, options={**context.options, "sync": "off"})
        return self._prepared(replace(self.job, context=apart, plans=None, dump_ir=None), regions)

    def _prepared(self, job: Job, regions: Sequence[Region | None]) -> list[Prepared]:
        return job.prepared(self.shape_sets, regions, self._tell, self.favoured)

    def _tell(self, stage: str, done: int, total: int) -> None:
        if self.options.progress is not None:
            self.options.progress(stage, done, total)


def _with_open_on_host(compilation: _Compilation, error: Exception) -> CompiledModel:
    """Compile the model with its open dimensions left to the host, as no kernels cover all sizes; `error` says why, and
    is raised if that fails as well.
    """
    try:
        return replace(compilation, job=replace(compilation.job, refused=str(error))).compiled([None])
    except _REFUSALS:
        raise error from error.__cause__


def _synchronisation(sync: str | Policy, target: str) -> tuple[object, tuple[PluginRecord, ...]]:
    """Return the value of `sync` for the passes, and the record of a policy that is a plug-in. Raises OptionError on a
    CPU.
    """
    from tilestitch.passes.plugins.load import load_policy
    from tilestitch.passes.sync.policies import form_of, wanted_policy, wanted_sync

    given: object = sync
    policies: tuple[PluginRecord, ...] = ()
    if isinstance(sync, str) and ":" in sync:
        text, form = form_of(sync)
        policy, record = load_policy(text)
        given, policies = wanted_policy(policy, form), (record,)
    if wanted_sync(given) is not None and sync != "auto" and target.startswith("cpu"):
        raise OptionError(f"sync is {sync!r}, but kernels of {target} follow each other; give off or auto")
    return given, policies


def _plugins(options: Options) -> LoadedPlugins:
    """Return the plug-ins to use. Warns of installed ones that cannot be loaded."""
    from tilestitch.passes.plugins.load import Installed, load_plugins

    plugins = load_plugins(options.passes, None if options.installed_plugins else Installed())
    for warning in plugins.warnings:
        warnings.warn(warning, PluginWarning, stacklevel=3)
    return plugins


def _context(
    options: Options, backend: Backend, threads: int, plugins: LoadedPlugins, given_sync: object,
    policies: Sequence[PluginRecord],
) -> PassContext:  # fmt: skip
    """Return the context of the passes: machine, options, plug-ins, and latency model."""
    from tilestitch.codegen.schedule import KernelsOfPlugins

    model = chosen_model(options.cost_model, plugins.cost_model)
    without_winograd = not options.winograd and options.target.startswith("cpu")
    return PassContext(
        replace(backend.planned_for(threads), without_winograd=without_winograd),
        options={
            "planner": options.planner,
            "precision": options.precision,
            "keep_fp32": tuple(options.keep_fp32),
            "sync": given_sync,
            "branch_bytes": options.branch_bytes,
            "plan_budget_s": options.plan_budget_s,
            "search": True,
        },
        rules=plugins.rules,
        plugins=(*plugins.records, *policies),
        cost_model=with_records(model, options.records, options.frozen, options.target, threads),
        kernels_of=KernelsOfPlugins(plugins.schedules, backend.target_of_schedules),
    )


def _recorded(options: Options, threads: int) -> dict[str, Any]:
    """Return the record of the options in the artifact (`options` of `explain --json`)."""
    from tilestitch.passes.plugins.load import as_texts

    record: dict[str, Any] = {
        "target": options.target, "precision": options.precision, "planner": options.planner,
        "passes": as_texts(options.passes), "installed_plugins": options.installed_plugins, "threads": threads,
        "cost_model": options.cost_model,
        "records": None if options.records is None else os.fspath(options.records), "frozen": options.frozen,
    }  # fmt: skip
    if options.keep_fp32:
        record["keep_fp32"] = list(options.keep_fp32)
    if not options.winograd:
        record["winograd"] = False
    if options.sync != "off":
        record["sync"] = options.sync if isinstance(options.sync, str) else options.sync.name
    return record


def _write_report(path: str | os.PathLike[str], source: Source, compiled: CompiledModel) -> None:
    from tilestitch.compiler.report import write_report

    name = source.name or compiled.specialisations[0].graph.name
    write_report(path, {"model": name, **compiled.explain()})
