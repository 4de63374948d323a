"""What a GEMM asks for before its tile waits: the operands that no kernel of the launch stores, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.codegen.cuda import test_cuda_tickets as tickets
from tests.codegen.cuda import test_cuda_tied as tied
from tests.codegen.cuda.cuda_harness import target
from tests.passes.sync.graphs import convolutions, mlp, operand
from tilestitch.codegen.cuda import before
from tilestitch.codegen.cuda.abi import CudaLaunch, TemporaryArg, ValueArg
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.compiler.ir import Graph
from tilestitch.passes.plan import Group
from tilestitch.runtime.emulator.errors import KernelFaultError

GPU = "cuda:sm_90"
CHAINS: dict[str, tuple[Callable[[], Graph], str]] = {
    "gemm_mma": (lambda: mlp(40, 64, 136, "float16"), "down"),
    "gemm_simt": (lambda: mlp(40, 40, 70), "down"),
    "gemv": (lambda: mlp(4, 64, 640), "down"),
    "gemv along k": (lambda: turned(4, 640), "down"),
    "convolution": (lambda: two_convolutions(16, 9), "w1"),
}


def turned(rows: int, width: int) -> Graph:
    """Two GEMMs, the second of which reads its weights along k."""
    graph = Graph("turned")
    inner = graph.emit("tanh", graph.emit("matmul", operand(graph, "x", rows, 24), operand(graph, "up", 24, width)))
    graph.outputs = [graph.emit("matmul", inner, operand(graph, "down", 72, width), trans_b=True)]
    return graph


def two_convolutions(channels: int, edge: int) -> Graph:
    """The second reads what the first stores as it is."""
    graph = convolutions(1, channels, edge, "float16")
    w = operand(graph, "w1", 3, 3, channels, channels, dtype="float16")
    graph.outputs = [
        graph.emit("conv", graph.outputs[0], w, strides=(1, 1), before=(1, 1), after=(1, 1), dilations=(1, 1), groups=1,
                   layout="NXC")
    ]  # fmt: skip
    return graph


def lowered(graph: Graph, form: str) -> tuple[Group, CudaLaunch, str]:
    """The launch of the last part, and what it does for a tile of it."""
    (group,) = tied.planned(graph, f"tile/{form}", GPU).groups
    launch = lower_group(graph, group, target(GPU))[-1]
    text = kernel_text(launch.func, target(GPU))
    body = text[text.rindex('extern "C"') :]
    body = body[body.index("{") :]
    posts = [found.end() for found in re.finditer(r"ts_ticket_post\(", body[: body.rindex("ts_ticket_await")])]
    return group, launch, body[posts[-1] if posts else 0 :]


def first_use(launch: CudaLaunch, body: str, name: str) -> int:
    """Where a value is first named."""
    (number,) = (n for n, arg in enumerate(launch.args) if _name(arg) == name)
    found = re.search(rf"\bp{number}\b", body)
    assert found is not None, (name, body)
    return found.start()


def _name(arg: object) -> str:
    match arg:
        case ValueArg(name) | TemporaryArg(name):
            return name
    return ""


@pytest.mark.parametrize("form", ["tickets", "launches"])
@pytest.mark.parametrize("chain", CHAINS)
def test_weights_are_asked_for_before_the_wait_and_results_after_it(chain: str, form: str) -> None:
    make, weights = CHAINS[chain]
    group, launch, body = lowered(make(), form)
    (wait,) = (found.start() for found in re.finditer("ts_ticket_await", body))
    assert first_use(launch, body, weights) < wait < first_use(launch, body, group.parts[-2].outputs[0])


def test_operands_that_the_launch_stores_itself_are_not_read_early() -> None:
    graph = Graph("square")
    inner = graph.emit("matmul", operand(graph, "x", 40, 24), operand(graph, "w", 24, 40))
    graph.outputs = [graph.emit("matmul", inner, inner)]
    group, launch, body = lowered(graph, "launches")
    assert body.index("ts_ticket_await") < first_use(launch, body, group.parts[0].outputs[0])


@pytest.mark.parametrize("chain", ["gemm_mma", "gemm_simt", "convolution"])
def test_a_result_that_is_read_before_the_wait_is_found(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = CHAINS[chain][0]()
    (group,) = tickets.planned(graph).groups
    monkeypatch.setattr(before, "is_early", lambda layout: True)
    for module in ("mma", "simt", "gemv"):
        monkeypatch.setattr(f"tilestitch.codegen.cuda.gemm.{module}.is_early", lambda layout: True)
    (launch,) = lower_group(graph, group, target())
    text = kernel_text(launch.func, target())
    found = []
    for options in tickets.ORDERS:
        try:
            tickets.run(graph, launch, text, options)
        except KernelFaultError as error:
            found.append(str(error).lower())
    assert found and all("race" in problem for problem in found)


def test_a_kernel_that_does_not_say_where_it_waits_is_no_kernel() -> None:
    with pytest.raises(AssertionError, match="would not wait"), before.waiting(lambda: None, ()):
        pass
