"""From an ONNX model to an artifact: the one function that drives frontend, passes and code generation.

compile_model("model.onnx", shapes={"x": (1, 3, 224, 224)}).save("model.tsm")
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch import __version__
from tilestitch.codegen.errors import CodegenError
from tilestitch.compiler.frontend import FrontendError
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.errors import IRError
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.models import model_named
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.contract import PassContext
from tilestitch.passes.errors import PassError, PlanError, PluginWarning
from tilestitch.passes.plan import StitchPlan
from tilestitch.runtime.artifact import ArtifactContents, artifact_bytes, read_artifact, weights_path, write_artifact
from tilestitch.runtime.jsonfields import parse_json

from .errors import CacheWarning, OpenSizeError, OptionError
from .prepare import Job, Prepared, Progress
from .sources import opened
from .specialise import Region, ShapeSet, favoured_regions, regions_of, scopes_of, shape_sets_of
from .undecided import naming_values

if TYPE_CHECKING:
    import onnx
    import torch

    from tilestitch.codegen.assemble import Assembled
    from tilestitch.codegen.backend import Backend
    from tilestitch.codegen.kernel_cache import KernelCache
    from tilestitch.passes.plan import PluginRecord
    from tilestitch.passes.plugins.load import Named
    from tilestitch.passes.sync.policies import Policy

TARGETS = "give cpu, cpu:NAME, cuda:sm_90a, cuda:h200, or emulator"
EXPLANATION = "explain.json"
"""The artifact's member that `tilestitch explain` reads."""
_REFUSALS = (FrontendError, IRError, PassError, CodegenError, OpenSizeError)
"""What is raised for a model that cannot be compiled for all sizes, among other reasons."""


@dataclass(frozen=True)
class Specialisation:
    """What was compiled for one set of input shapes."""

    graph: Graph
    plan: StitchPlan
    explanation: Mapping[str, Any]


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model in memory. `specialisations` are in the order in which the shape sets were given."""

    contents: ArtifactContents
    specialisations: tuple[Specialisation, ...]

    @property
    def plan(self) -> StitchPlan:
        """The plan of the first specialisation."""
        return self.specialisations[0].plan

    @property
    def plans(self) -> tuple[StitchPlan, ...]:
        """Those of all specialisations, to be replayed."""
        return tuple(each.plan for each in self.specialisations)

    def explain(self) -> dict[str, Any]:
        """What `tilestitch explain --json` prints of the first specialisation; others under `specialisations`."""
        first, *others = (dict(s.explanation) for s in self.specialisations)
        return {**first, "specialisations": others} if others else first

    def __repr__(self) -> str:
        from tilestitch.runtime.feeds import ValueInfo, in_one_line

        program = self.contents.programs[0]
        inputs = in_one_line([ValueInfo(program.values[n].name, program.values[n].type) for n in program.inputs])
        results = program.results.items()
        outputs = in_one_line([ValueInfo(name, program.values[number].type) for name, number in results])
        kernels = sum(s.plan.kernel_count for s in self.specialisations)
        more = f", {len(self.specialisations)} specialisations" * (len(self.specialisations) > 1)
        steps = sum(s.explanation["host"]["steps"] for s in self.specialisations)
        more = f" and {steps} host steps{more}" if steps else more
        target = self.contents.target.kind
        return f"<CompiledModel for {target}: {kernels} kernels{more}, ({inputs}) -> ({outputs})>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact atomically. With stripped weights, they go to `PATH.weights.safetensors` beside it; both
        files are there in the end, or neither.

        Raises ArtifactWriteError if the disk is full or the folder cannot be written.
        """
        target = Path(path)
        write_artifact(target, self.contents, weights_path(target) if self.contents.strip_weights else None)
        return target

    def to_bytes(self) -> bytes:
        """The artifact as bytes, for `tilestitch.runtime.load`."""
        return artifact_bytes(self.contents)


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
        Its shapes are those of these inputs; for open dimensions export it with `dynamic_shapes` and give what results.
    external_data: the folder that the external tensors of a ModelProto, or of bytes, lie in.
    target: `cpu`, or `cpu:NAME` for another CPU than this one (an LLVM CPU name); `cuda:sm_90a`, `cuda:h200` or
        several such names with commas between them, for which no GPU is needed; `emulator`: the same kernels as text
        only, for the emulated device.
    shapes: sizes of inputs, name to shape, for dimensions that the model leaves open; several such sets give an
        artifact with one specialisation each.
    dims: the least and the largest size of dimensions that the model leaves open, by name; others have a default range
        (docs/dynamic_shapes.md). None: all have it, and are left to the host where not all of their sizes can be
        compiled, or on a GPU.
    favour: points of sizes, by name of dimension, that get a specialisation of their own; the others stay open.
    precision: of contractions with float32 operands: fp32 (float32 stays float32), tf32 (GPUs), fp16 or bf16. Sums and
        statistics are float32 always; `passes.rewrite.precision` has the whole table.
    keep_fp32: names of ONNX nodes, or patterns (`/encoder/layer.0/*`), whose matmuls and convolutions stay float32.
    winograd: whether CPUs may compute convolutions of 3 x 3 taps by Winograd's algorithm, which rounds differently.
    passes: plug-ins: instances, classes, or texts `MODULE:CLASS{field=value}`. installed_plugins: whether those of
        installed packages take part, too.
    plan: replay this StitchPlan (of several specialisations: all `plans` of a CompiledModel), or a file's, instead of
        planning; it says for which sizes. planner: stitch, explore, xla, injective or none.
    cost_model: what predicts how long kernels take: analytical, learned, random, or a file that training wrote;
        default: a plug-in if one does, else analytical.
    records: a file of measured kernels, which take what they took on this machine; the model is asked for all others.
        frozen: whatever machine this is, so that the artifact depends on the file alone; it has records of one.
    plan_budget_s: seconds that each search for a better plan may take; 0: the plan of the rules; default: a budget of
        work, the same on every machine.
    strip_weights: leave the weights out of the artifact.
    dump_ir: a folder for the graph after every pass, and for views of the final one. report: path of an HTML report.
    num_threads: threads that tasks are sized for, and processes that compile CUDA (default: all cores).
    keep_source: put TIR and LLVM text, or the CUDA text, of the kernels into the artifact.
    cache: keep compiled kernels in this folder, and do not compile again those that are there; True is the user's
        cache folder, False none. The artifact is the same. A folder that cannot be written is a CacheWarning.
    nvcc: path of a CUDA compiler to use instead of NVRTC.
    host_steps: whether what has no kernel may run on the host with numpy. If not, HostStepsError says what and why.
    donate: patterns of the names of inputs that a decoder grows (`past_*`): their new rows are stored in the
        memory that they lie in, if the runtime is given that (`load(..., donate=...)`).
    branch_bytes: how many bytes more than one launch at a time needs the memory of values on a GPU may take, so that
        launches can run side by side; None: as many as that takes.
    expose: names of ONNX values to add to the outputs; with `plan`, of what its kernels store (`outputs` of `explain`).

    Raises OptionError, ExportError, OpenSizeError, and the errors of frontend, passes and code generation; each message
    ends with what to do.
    """
    from tilestitch.codegen.assemble import assemble
    from tilestitch.codegen.schedule import KernelsOfPlugins
    from tilestitch.passes.plugins.load import Installed, as_texts, load_plugins, load_policy
    from tilestitch.passes.sync.policies import TIES_OF_TILES, form_of, wanted_policy, wanted_sync

    _check_options(target, precision, num_threads, branch_bytes)
    _check_kept(keep_fp32, precision)
    _check_budget(plan_budget_s)
    given_sync: object = sync
    policies: tuple[PluginRecord, ...] = ()
    if isinstance(sync, str) and ":" in sync:
        text, form = form_of(sync)
        policy, record_of_policy = load_policy(text)
        given_sync, policies = wanted_policy(policy, form), (record_of_policy,)
    if wanted_sync(given_sync) is not None and sync != "auto" and target.startswith("cpu"):
        raise OptionError(f"sync is {sync!r}, but kernels of {target} follow each other; give off or auto")
    tell = progress or (lambda stage, done, total: None)
    threads = num_threads or len(os.sched_getaffinity(0))
    backend = _backend(target, threads, cache, nvcc)
    plugins = load_plugins(passes, None if installed_plugins else Installed())
    for warning in plugins.warnings:
        warnings.warn(warning, PluginWarning, stacklevel=2)
    shape_sets, regions = shape_sets_of(shapes), regions_of(dims, plan is not None)
    favoured = favoured_regions(favour, regions)
    context = PassContext(
        replace(backend.planned_for(threads), without_winograd=not winograd and target.startswith("cpu")),
        options={
            "planner": planner,
            "precision": precision,
            "keep_fp32": tuple(keep_fp32),
            "sync": given_sync,
            "branch_bytes": branch_bytes,
            "plan_budget_s": plan_budget_s,
            "search": True,
        },
        rules=plugins.rules,
        plugins=(*plugins.records, *policies),
        cost_model=_with_records(_cost_model(cost_model, plugins.cost_model), records, frozen, target, threads),
        kernels_of=KernelsOfPlugins(plugins.schedules, backend.target_of_schedules),
    )
    record: dict[str, Any] = {
        "target": target, "precision": precision, "planner": planner, "passes": as_texts(passes),
        "installed_plugins": installed_plugins, "threads": threads, "cost_model": cost_model,
        "records": None if records is None else os.fspath(records), "frozen": frozen,
    }  # fmt: skip
    if keep_fp32:
        record["keep_fp32"] = list(keep_fp32)
    if not winograd:
        record["winograd"] = False
    if sync != "off":
        record["sync"] = sync if isinstance(sync, str) else sync.name
    replayed = None if plan is None else _load_plans(plan)
    scopes = None if replayed is None else scopes_of(replayed, shape_sets, [*favoured, *regions], len(favoured))
    folder = Path(dump_ir) if dump_ir else None
    with opened(model, example_inputs, external_data) as source:
        job = Job(source, context, plugins.passes, tuple(expose), replayed, record, folder, host_steps)
        job = replace(job, donate=tuple(donate), scopes=scopes)

        def compiled_for(job: Job, regions: Sequence[Region | None]) -> CompiledModel:
            prepared = job.prepared(shape_sets, regions, tell, len(favoured))
            plain: list[Prepared] = []
            if any(group.tie in TIES_OF_TILES for p in prepared for group in p.planned.plan.groups):
                apart = replace(context, options={**context.options, "sync": "off"})
                plain = replace(job, context=apart, plans=None, dump_ir=None).prepared(
                    shape_sets, regions, tell, len(favoured)
                )
            planned = [p.planned for p in (*prepared, *plain)]
            with naming_values([p.graph for p in planned]):
                assembled = assemble(
                    planned, backend, keep_source=keep_source, progress=tell, schedules=plugins.schedules
                )
            return _explained(assembled, prepared, plain, precision, strip_weights, context)

        try:
            compiled = compiled_for(job, [*favoured, *regions])
        except _REFUSALS as error:
            if dims is not None or favoured or donate or scopes is not None:
                raise
            compiled = _with_open_on_host(lambda refused: compiled_for(replace(job, refused=refused), [None]), error)
        if report is not None:
            from tilestitch.compiler.report import write_report

            write_report(report, {"model": source.name or compiled.specialisations[0].graph.name, **compiled.explain()})
    return compiled


def _with_open_on_host(compiled: Callable[[str], CompiledModel], error: Exception) -> CompiledModel:
    """The model with its open dimensions left to the host, as there are no kernels for all sizes; what was refused for
    that reason, where this is refused, too.
    """
    try:
        return compiled(str(error))
    except _REFUSALS:
        raise error from error.__cause__


def _explained(
    assembled: Assembled,
    prepared: Sequence[Prepared],
    plain: Sequence[Prepared],
    precision: str,
    strip_weights: bool,
    context: PassContext,
) -> CompiledModel:
    """plain: the counterparts of all specialisations whose kernels wait for whole kernels, if there are any."""
    from tilestitch.passes.explain import explain_plan
    from tilestitch.passes.recorded import without_plans

    count = len(prepared)
    programs = tuple(
        replace(program, plain=number >= count) for number, program in enumerate(assembled.contents.programs)
    )

    contents = replace(
        assembled.contents,
        programs=programs,
        plan=assembled.contents.plan[:count],
        precision=precision,
        compiler_version=__version__,
        strip_weights=strip_weights,
    )
    specialisations = []

    def explained(p: Prepared) -> dict[str, Any]:
        graph, plan = p.planned.graph, p.planned.plan
        return explain_plan(graph, plan, launches=assembled.launches, target=context.target, model=context.cost_model)

    for p, counterpart in zip_longest(prepared, plain):
        graph, plan, explanation = p.planned.graph, p.planned.plan, explained(p)
        if counterpart is not None:
            launches, predicted = counterpart.planned.plan.launches or (), explained(counterpart)["prediction"]
            explanation["plain"] = {"launches": len(launches), "predicted_us": predicted["total_us"]}
        specialisations.append(Specialisation(graph, plan, {**explanation, "precision": precision, **p.remarks}))
    compiled = CompiledModel(contents, tuple(specialisations))
    short = without_plans(compiled.explain(), contents.plan)
    extra = {**contents.extra, EXPLANATION: json.dumps(short, separators=(",", ":")).encode()}
    return replace(compiled, contents=replace(contents, extra=extra))


def _backend(target: str, threads: int, cache: str | os.PathLike[str] | bool, nvcc: str | None) -> Backend:
    """The backend of a target. Raises TargetError for a name that its backend does not understand."""
    kind = target.split(":", 1)[0]
    if kind == "cpu":
        from tilestitch.codegen.cpu.backend import CpuBackend
        from tilestitch.codegen.cpu.target import parse_target

        return CpuBackend(parse_target(target), threads, _kernel_cache(cache))
    if kind in ("cuda", "emulator"):
        from tilestitch.codegen.cuda.backend import CudaBackend
        from tilestitch.codegen.cuda.target import parse_cuda_target
        from tilestitch.codegen.cuda.toolchain.compile import BuildOptions

        text_only = kind == "emulator"
        kept = _kernel_cache(False if text_only else cache)
        return CudaBackend(parse_cuda_target(target), BuildOptions(threads, kept, nvcc, text_only=text_only))
    raise OptionError(f"there is no target {target!r}; {TARGETS}")


def _kernel_cache(cache: str | os.PathLike[str] | bool) -> KernelCache:
    """Warns where nothing can be kept."""
    from tilestitch.codegen.kernel_cache import NO_CACHE, KernelCache, default_folder

    name = os.fspath(cache) if isinstance(cache, os.PathLike) else cache
    if not isinstance(name, (bool, str)) or name in ("", "off") or (isinstance(name, str) and "\0" in name):
        raise OptionError(f"cache is {cache!r}; name a folder, or give True for the usual one or False for none")
    if name is False:
        return NO_CACHE
    try:
        found = KernelCache(default_folder() if name is True else Path(name))
        problem = found.why_not_kept()
    except RuntimeError as error:
        found, problem = NO_CACHE, str(error)
    if problem is not None:
        advice = "name another folder (cache=…, --cache DIR), or none (cache=False, --cache off)"
        warnings.warn(f"compiled kernels are not kept: {problem}; {advice}", CacheWarning, stacklevel=4)
    return found


def _check_options(target: str, precision: str, num_threads: int | None, branch_bytes: int | None) -> None:
    from tilestitch.passes.rewrite.precision import PRECISIONS

    if not isinstance(target, str):
        raise OptionError(f"target is {target!r}, no text; {TARGETS}")
    if precision not in PRECISIONS:
        raise OptionError(f"precision {precision!r} is not supported; give one of {', '.join(PRECISIONS)}")
    if num_threads is not None and not (isinstance(num_threads, int) and num_threads >= 1):
        raise OptionError(f"num_threads is {num_threads!r}; give an integer of at least 1, or None for all cores")
    if branch_bytes is not None and not (isinstance(branch_bytes, int) and branch_bytes >= 0):
        raise OptionError(f"branch_bytes is {branch_bytes!r}; give a number of bytes, 0 or more, or None")


def _check_kept(keep_fp32: Sequence[str], precision: str) -> None:
    if isinstance(keep_fp32, str):
        raise OptionError(f"keep_fp32 is the text {keep_fp32!r}; give a list of names of nodes")
    if keep_fp32 and precision == "fp32":
        raise OptionError("keep_fp32 is for a lower precision; leave it out, or give precision fp16, bf16 or tf32")


def _check_budget(plan_budget_s: float | None) -> None:
    if plan_budget_s is not None and not plan_budget_s >= 0:
        raise OptionError(f"plan_budget_s is {plan_budget_s!r}; give seconds, 0 or more")


def _cost_model(name: str | None, plugin: LatencyModel | None) -> LatencyModel:
    """The model of this name. Raises OptionError where a plug-in predicts, too."""
    if name is None:
        return plugin or model_named("analytical")
    if plugin is not None:
        raise OptionError(f"both {name} and the plug-in {plugin.name} are cost models; leave out one of the two")
    try:
        return model_named(name)
    except MeasurementError as error:
        raise OptionError(str(error)) from None


def _with_records(
    model: LatencyModel, path: str | os.PathLike[str] | None, frozen: bool, target: str, threads: int
) -> LatencyModel:
    """What was measured, and `model` for the rest. Raises OptionError where the file has nothing for this machine."""
    if path is None:
        if frozen:
            raise OptionError("frozen needs records of measured kernels; name their file with records (--records)")
        return model
    if not target.startswith("cpu"):
        raise OptionError(f"records are of kernels for CPUs, not for {target}; leave them out")
    from tilestitch.codegen.cpu.target import parse_target
    from tilestitch.cost_model.records import RecordedModel, Records

    from .machine import machine_of

    with Records.open(os.fspath(path), frozen=True) as records:
        machines = records.machines()
        here = machines[0] if frozen and len(machines) == 1 else machine_of(parse_target(target), threads)
        if frozen and len(machines) != 1:
            raise OptionError(f"{path} has records of {len(machines)} machines; frozen ones are of one: export those")
        if here not in machines:
            raise OptionError(f"{path} has no records of this machine ({here}); measure some, or take them frozen")
        return RecordedModel.of((record for record in records if record.machine == here), model)


def _load_plans(plan: StitchPlan | Sequence[StitchPlan] | str | os.PathLike[str]) -> list[StitchPlan]:
    """The plans to replay, one a specialisation: from plan objects, or a file that holds a plan or a list of them."""
    if isinstance(plan, StitchPlan):
        return [plan]
    if isinstance(plan, str | os.PathLike):
        return read_plans(Path(plan))
    plans = list(plan)
    odd = next((each for each in plans if not isinstance(each, StitchPlan)), None)
    if odd is not None or not plans:
        raise OptionError(f"plan is {odd!r}, no StitchPlan; give one or several, or the path of a file")
    return plans


def read_plans(path: Path) -> list[StitchPlan]:
    """The plans of an artifact, or of a file that holds a plan or a list of them.

    Raises PlanError, naming the file, for anything else.
    """
    if zipfile.is_zipfile(path):
        data = read_artifact(path).plan
        return [StitchPlan.from_json(item, str(path)) for item in (data if isinstance(data, list) else [data])]
    try:
        data = parse_json(path.read_bytes())
    except ValueError as error:
        raise PlanError(f"{path} is no JSON text: {error}; give the plan.json of an artifact") from None
    if data == []:
        raise PlanError(f"{path} holds no plan; give the plan.json of an artifact")
    return [StitchPlan.from_json(item, str(path)) for item in (data if isinstance(data, list) else [data])]
