"""The door for authors of plug-ins: what it offers, and that everything works that is only reached through it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from tilestitch.compiler import compile_model
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import api
from tilestitch.passes.api import (
    CKernel,
    Combine,
    CostModel,
    CudaKernel,
    Fuse,
    Graph,
    GraphPass,
    Group,
    GroupKind,
    KernelFacts,
    KernelsView,
    KernelTarget,
    Node,
    PassContext,
    PassResult,
    PlannerView,
    PluginError,
    Rule,
    Schedule,
    Temporary,
    TirKernel,
    WhyNot,
    assert_same_values,
    kernels_of,
    plan_of,
)

ROOT = Path(__file__).parents[3]
SOFTMAX = """graph @softmax(%x: float32[4,128]) -> (%y) {
  %r = reduce_max(%x) {axes=[1], keepdims=true} : float32[4,1]
  %s = sub(%x, %r) : float32[4,128]
  %e = exp(%s) : float32[4,128]
  %t = reduce_sum(%e) {axes=[1], keepdims=true} : float32[4,1]
  %y = div(%e, %t) : float32[4,128]
}"""


def row_sums() -> ModelProto:
    """y = the sum of each row of x, and its sigmoid."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["y"], name="sum", keepdims=1),
        helper.make_node("Sigmoid", ["y"], ["z"], name="squash"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [37, 130])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [37, 1]) for n in ("y", "z")]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "row_sums", [x], outputs, [axes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@dataclass(frozen=True)
class Apart(Rule):
    """Sums of rows are kernels of their own."""

    name: ClassVar[str] = "apart"

    def forbid(self, state: PlannerView, nodes: Sequence[Node]) -> WhyNot | None:
        alone = len(nodes) == 1 or not any(n.op == "reduce_sum" for n in nodes)
        return None if alone else WhyNot(nodes[0].name, self.name, "sums are to be alone")


# -- the door ----------------------------------------------------------------------------------------------------------


def test_every_name_of_the_door_is_there_and_documented() -> None:
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("plugins.md", "first_pass.md", "ir.md"))
    described = {name for name in api.__all__ if re.search(rf"\b{name}\b", pages)}
    plain = {"Kind", "kind_of", "IRError", "PassError", "PluginError", "PluginWarning", "HostGroup", "Traffic"}
    plain.add("KERNEL_NAME")
    assert set(api.__all__) - described <= plain
    assert all(hasattr(api, name) for name in api.__all__)


def imports_of(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_examples_and_pages_use_nothing_but_the_api() -> None:
    sources = [path.read_text() for path in (ROOT / "examples").glob("*/tilestitch_example_*/*.py")]
    pages = ((ROOT / "docs" / name).read_text() for name in ("plugins.md", "first_pass.md"))
    sources += [
        text
        for page in pages
        for text in re.findall(r"^```python[^\n]*\n(.*?)^```$", page, re.S | re.M)
        if "…" not in text
    ]
    used = {name for source in sources for name in imports_of(source) if name.startswith("tilestitch")}
    assert used == {"tilestitch.passes.api", "tilestitch.compiler"}


def test_a_rule_that_overrides_nothing_changes_nothing() -> None:
    @dataclass(frozen=True)
    class Idle(Rule):
        name: ClassVar[str] = "idle"

    graph = parse_graph(SOFTMAX)
    assert kernels_of(graph, [Idle()]) == kernels_of(graph)


@pytest.mark.parametrize("base", [GraphPass, Schedule, CostModel])
def test_a_class_without_its_one_method_is_refused(base: type) -> None:
    @dataclass(frozen=True)
    class Empty(base):  # type: ignore[misc, valid-type]
        name: ClassVar[str] = "empty"

    with pytest.raises(PluginError, match=r"Empty at .*test_api\.py:\d+ does not define"):
        plan_of(parse_graph(SOFTMAX), [Empty])


# -- passes ------------------------------------------------------------------------------------------------------------

SEEN: list[tuple[str, list[str]]] = []


@dataclass(frozen=True)
class Watcher(GraphPass):
    name: ClassVar[str] = "watcher"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        SEEN.append((self.place, [node.op for node in graph.nodes]))
        return PassResult(graph, False, (f"{len(graph.nodes)} nodes",))


@dataclass(frozen=True)
class Early(Watcher):
    name: ClassVar[str] = "early"
    place: ClassVar[str] = "imported"


@dataclass(frozen=True)
class Middle(Watcher):
    name: ClassVar[str] = "middle"
    place: ClassVar[str] = "canonical"


def test_a_pass_runs_at_its_place() -> None:
    graph = parse_graph("""graph @g(%x: float32[2,3,4,4], %w: float32[5,3,1,1]) -> (%y) {
      %a = neg(%x) : float32[2,3,4,4]
      %b = neg(%a) : float32[2,3,4,4]
      %y = conv(%b, %w) {strides=[1,1], before=[0,0], after=[0,0], dilations=[1,1], groups=1, layout="NCX"}
           : float32[2,5,4,4]
    }""")
    SEEN.clear()
    plan_of(graph, [Watcher(), Middle(), Early()])
    seen = dict(SEEN)
    assert [place for place, _ in SEEN] == ["imported", "canonical", "final"]
    assert seen["imported"] == ["neg", "neg", "conv"]
    assert seen["canonical"] == ["conv"], "simplified, and no layout chosen"
    assert "transpose" in seen["final"]


def test_a_pass_of_an_unknown_place_is_refused() -> None:
    @dataclass(frozen=True)
    class Lost(Watcher):
        name: ClassVar[str] = "lost"
        place: ClassVar[str] = "nowhere"

    with pytest.raises(PluginError, match=r"'nowhere', which is none of imported, canonical, final"):
        plan_of(parse_graph(SOFTMAX), [Lost])


def test_notes_are_explained() -> None:
    explained = compile_model(row_sums(), passes=[Watcher, "algebra"]).explain()
    (note,) = [note["note"] for note in explained["notes"] if note["pass"] == "watcher"]
    assert note.endswith("nodes")


# -- rules -------------------------------------------------------------------------------------------------------------


def test_a_rule_sees_kernels_readers_and_producers_and_cannot_change_them() -> None:
    views: list[Any] = []

    @dataclass(frozen=True)
    class Looks(Rule):
        name: ClassVar[str] = "looks"

        def propose(self, state: PlannerView) -> Iterator[Fuse]:
            exp = next(n for n in state.nodes if n.op == "exp")
            before = state.kernel_of(exp)
            (producer,), readers = state.producers(before), state.readers(before)
            views.append(([n.op for n in producer.nodes], sorted(n.op for r in readers for n in r.nodes), before.kind))
            views.append(state.why_not([producer.nodes[0], exp]))
            yield Fuse((exp, producer.nodes[0]), forced=True)
            views.append([n.op for n in state.kernel_of(exp).nodes])
            views.append(len(state.kernels()))
            with pytest.raises(AttributeError):
                state.graph = Graph()  # type: ignore[misc]
            with pytest.raises(AttributeError):
                before.nodes = ()  # type: ignore[misc]

    plan_of(parse_graph(SOFTMAX), [Looks()], planner="none")
    assert views == [(["sub"], ["div", "reduce_sum"], GroupKind.INJECTIVE), None, ["sub", "exp"], 4]


def test_a_forced_union_that_is_a_cycle_is_refused_as_data() -> None:
    @dataclass(frozen=True)
    class Around(Rule):
        name: ClassVar[str] = "around"

        def propose(self, state: PlannerView) -> Iterator[Fuse]:
            ends = [n for n in state.nodes if n.op in ("exp", "div")]
            yield Fuse(tuple(ends), forced=True)

    plan = plan_of(parse_graph(SOFTMAX), [Around()], planner="none")
    (refusal,) = [r for r in plan.refusals if r.subject == "e + y"]
    assert refusal.rule == "legality.cycle"


def test_a_rule_combines_kernels() -> None:
    @dataclass(frozen=True)
    class SideBySide(Rule):
        name: ClassVar[str] = "side_by_side"

        def combine(self, kernels: KernelsView) -> Iterator[Combine]:
            first, second = kernels.order
            assert kernels.independent(first, second) and not kernels.readers(first)
            yield Combine(((first, second),), forced=True)

    graph = parse_graph("""graph @g(%x: float32[64], %y: float32[100]) -> (%a, %b) {
      %a = exp(%x) : float32[64]
      %b = neg(%y) : float32[100]
    }""")
    assert kernels_of(graph, planner="none") == [["exp"], ["neg"]]
    assert kernels_of(graph, [SideBySide()], planner="none") == [["exp", "neg"]]


# -- cost models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flat(CostModel):
    """Every launch takes as long, so that fewer are better."""

    us: float = 3.0
    name: ClassVar[str] = "flat"

    def latency_us(self, kernel: KernelFacts, device: Any) -> float:
        return self.us * kernel.launches


def test_the_planner_and_explain_ask_the_cost_model_of_a_plugin() -> None:
    explained = compile_model(row_sums(), passes=[Flat()], planner="explore").explain()
    assert explained["prediction"]["model"] == "flat"
    assert {kernel["predicted_us"] for kernel in explained["kernels"]} == {3.0}


def test_two_cost_models_are_one_too_many() -> None:
    @dataclass(frozen=True)
    class Other(Flat):
        name: ClassVar[str] = "other"

    with pytest.raises(PluginError, match=r"plug-in flat .* and plug-in other .* are cost models"):
        plan_of(parse_graph(SOFTMAX), [Flat(), Other()])


# -- schedules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CKernel("TILESTITCH_KERNEL", (), tasks=0), "tasks is 0"),
        (lambda: CKernel("TILESTITCH_KERNEL", (), tasks=2**31), "tasks is 2147483648"),
        (lambda: CKernel("TILESTITCH_KERNEL", (), scratch_bytes=2**62), "scratch_bytes is"),
        (lambda: CKernel("TILESTITCH_KERNEL", ["x"]), "give a tuple of names"),  # type: ignore[arg-type]
        (lambda: CKernel("void kernel() {}", ()), "defines no function TILESTITCH_KERNEL"),
        (lambda: CudaKernel("TILESTITCH_KERNEL", (1, 1, 1), (1, 1, 65), ()), "at most .1024, 1024, 64"),
        (lambda: CudaKernel("TILESTITCH_KERNEL", (1, 65536, 1), (1, 1, 1), ()), "grid is"),
        (lambda: CudaKernel("TILESTITCH_KERNEL", (1, 1), (1, 1, 1), ()), "tuple of three"),  # type: ignore[arg-type]
        (lambda: CudaKernel("TILESTITCH_KERNEL", (1, 1, 1), (1, 1, 1), (), shared_bytes=1 << 20), "shared_bytes is"),
        (lambda: Temporary("t", 0), "temporary 't': nbytes is 0"),
    ],
)
def test_kernels_that_no_machine_could_launch_cannot_be_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, ModuleType]:
    """The TIR examples of the page, for a CPU and for a GPU, each in a module of its own: TVM reads their source."""
    import importlib.util

    page = (ROOT / "docs" / "plugins.md").read_text()
    texts = [t for t in re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M) if "T.prim_func" in t]
    modules = []
    for number, text in enumerate(texts):
        path = tmp_path_factory.mktemp("tir") / f"documented_{number}.py"
        head = "from tvm.script import tirx as T\nfrom tilestitch.passes.api import TirKernel\n"
        path.write_text(head + text.replace("TirKernel(row_sums", "KERNEL = TirKernel(row_sums"))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        modules.append(importlib.util.module_from_spec(spec))
        sys.modules[path.stem] = modules[-1]
        spec.loader.exec_module(modules[-1])
    first, second = modules
    return first, second


TWO_STEPS = """
void TILESTITCH_KERNEL(const float *x, float *halves, int64_t task, void *scratch) {
  float *copy = scratch;
  for (int i = 0; i < 65; ++i) copy[i] = x[task * 65 + i];
  float sum = 0;
  for (int i = 0; i < 65; ++i) sum += copy[i];
  halves[task] = sum;
}
"""
SECOND_STEP = """
void TILESTITCH_KERNEL(const float *halves, float *y, int64_t task) {
  y[task] = halves[2 * task] + halves[2 * task + 1];
}
"""
CUDA = """
extern "C" __global__ void TILESTITCH_KERNEL(const float *x, float *y) {
  extern __shared__ float part[];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < 130; i += 32) sum += x[blockIdx.x * 130 + i];
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < 32; ++i) sum += part[i];
  y[blockIdx.x] = sum;
}
"""


@dataclass(frozen=True)
class Sums(Schedule):
    """Brings the kernels `BROUGHT[how]` for the sums of rows."""

    how: str = ""
    name: ClassVar[str] = "sums"

    def schedule(self, graph: Graph, group: Group, target: KernelTarget) -> Sequence[Any] | None:
        if [graph.node(name).op for name in group.nodes] != ["reduce_sum"]:
            return None
        x, y = group.inputs[0], group.outputs[0]
        halves = Temporary("halves", 4 * 74)
        if self.how == "C":
            first = CKernel(TWO_STEPS, (x, halves), tasks=74, scratch_bytes=65 * 4)
            return [first, CKernel(SECOND_STEP, (halves, y), tasks=37)]
        if self.how == "CUDA":
            return [CudaKernel(CUDA, (37, 1, 1), (32, 1, 1), (x, y), shared_bytes=128)]
        kernel: TirKernel = sys.modules[self.how].KERNEL
        return [TirKernel(kernel.func, (x, y), kernel.tasks, kernel.grid, kernel.block)]


@pytest.mark.parametrize(
    ("how", "target"),
    [("C", "cpu"), ("CUDA", "emulator"), ("documented_0", "cpu"), ("documented_1", "emulator")],
)
def test_own_kernels_compute_what_the_model_says(how: str, target: str, documented: object) -> None:
    compiled = compile_model(row_sums(), target, passes=[Apart, Sums(how)])
    (kernel,) = (k for k in compiled.explain()["kernels"] if k["onnx_nodes"] == ["sum"])
    assert {launch["symbol"].rpartition("_")[0] for launch in kernel["launches"]} == {"sums"}
    assert_same_values(compiled, row_sums(), device=target)


def test_own_kernels_for_a_gpu_compile_with_nvrtc(documented: object) -> None:
    for how in ("CUDA", "documented_1"):
        compiled = compile_model(row_sums(), "cuda:sm_90a", passes=[Apart, Sums(how)], cache=False)
        assert any(name.endswith(".cubin") for name in compiled.contents.kernels)


@pytest.mark.parametrize(("how", "target"), [("documented_1", "cpu"), ("documented_0", "emulator")])
def test_tir_for_the_other_target_is_the_plugins_fault(how: str, target: str, documented: object) -> None:
    with pytest.raises(Exception, match=r"plug-in sums .*its TIR kernel has . parameters, and needs"):
        compile_model(row_sums(), target, passes=[Apart, Sums(how)])


def test_tir_of_another_size_is_the_plugins_fault(documented: object) -> None:
    model = row_sums()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 36
    for value in model.graph.output:
        value.type.tensor_type.shape.dim[0].dim_value = 36
    with pytest.raises(
        Exception, match=r"parameter 0 of its TIR kernel has 4810 elements of float32; %x has 4680 of float32"
    ):
        compile_model(model, passes=[Apart, Sums("documented_0")])


def test_without_a_c_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Exception, match=r"plug-in sums .*there is no C compiler; install gcc or clang"):
        compile_model(row_sums(), passes=[Apart, Sums("C")])


def test_c_for_another_architecture_is_refused() -> None:
    with pytest.raises(Exception, match=r"plug-in sums .*not for aarch64; compile on such a machine"):
        compile_model(row_sums(), "cpu:aarch64-linux-gnu/neoverse-n1", passes=[Apart, Sums("C")])


def test_the_source_of_c_kernels_is_kept_on_request() -> None:
    compiled = compile_model(row_sums(), passes=[Apart, Sums("C")], keep_source=True)
    kept = [name for name in compiled.contents.extra if name.startswith("kernels/sums_") and name.endswith(".c")]
    assert len(kept) == 2


# -- test helpers ------------------------------------------------------------------------------------------------------


def test_assert_same_values_notices_a_wrong_result() -> None:
    @dataclass(frozen=True)
    class Doubles(GraphPass):
        name: ClassVar[str] = "doubles"

        def run(self, graph: Graph, context: PassContext) -> PassResult:
            node = next(n for n in graph.nodes if n.op == "reduce_sum")
            total = node.output
            uses, outputs = list(total.uses), list(graph.outputs)
            twice = graph.emit("add", total, total, origins=node.origins)
            for reader, index in uses:
                graph.set_input(reader, index, twice)
            graph.outputs = [twice if v is total else v for v in outputs]
            graph.sort()
            return PassResult(graph, True)

    compiled = compile_model(row_sums(), passes=[Doubles])
    with pytest.raises(AssertionError, match="y is off by"):
        assert_same_values(compiled, row_sums())


def test_assert_same_values_wants_nan_and_infinities_in_their_places() -> None:
    x = np.zeros((37, 130), np.float32)
    x[0, 0], x[1, 0], x[2, 0] = np.nan, np.inf, -np.inf
    assert_same_values(compile_model(row_sums()), row_sums(), {"x": x})
