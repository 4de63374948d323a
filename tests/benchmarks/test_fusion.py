"""The table of planners: what is counted of a plan, what is written of it; and how Inductor's programs are counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import fusion, inductor
from benchmarks.fusion import Row, counted, markdown, ratios, save, wanted, write
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph

TEXT = """graph @main(%x: float32[8,64], %w: float32[64,64]) -> (%y, %m) {
  %h = tanh(%x) : float32[8,64]
  %p = matmul(%h, %w) : float32[8,64]
  %y = add(%p, %x) : float32[8,64]
  %m = reduce_max(%x) {axes=[1], keepdims=false} : float32[8]
}"""


def graph() -> Graph:
    return parse_graph(TEXT, {})


def row(planner: str, launches: int, bound: int, traffic: int | None, target: str = "CPU") -> Row:
    return Row("net", target, planner, launches, launches, bound, traffic, 1500.0, 0.1)


@pytest.mark.parametrize("target", list(fusion.TARGETS))
def test_a_plan_is_counted_for_both_targets(target: str) -> None:
    found = counted("net", target, "none", graph())
    assert (found.kernels, found.memory_bound_kernels) == (4, 3)
    assert found.launches == 4
    # tanh and add read x and write as much, add reads the GEMM's result, too; the maximum writes 8 values.
    matrix = 8 * 64 * 4
    assert found.memory_bound_bytes == 2 * matrix + 3 * matrix + matrix + 8 * 4
    assert found.predicted_us is not None and found.predicted_us > 0


def test_planners_that_fuse_launch_less_and_move_less() -> None:
    none, xla = (counted("net", "H200", planner, graph()) for planner in ("none", "xla"))
    assert (none.launches, none.memory_bound_kernels) == (4, 3)
    assert (xla.launches, xla.memory_bound_kernels) == (2, 1)  # the GEMM adds, and the readers of x are siblings
    assert (xla.memory_bound_bytes or 0) < (none.memory_bound_bytes or 0)


def test_inductor_is_counted_for_the_gpu_only() -> None:
    rows = wanted(["net"], fusion.TARGETS, ("xla", "inductor"))
    assert rows == [("net", "CPU", "xla"), ("net", "H200", "xla"), ("net", "H200", "inductor")]


def test_ratios_compare_the_same_model_on_the_same_target() -> None:
    rows = [row("xla", 20, 10, 1000), row("stitch", 10, 2, 250), row("stitch", 9, 1, 100, "H200")]
    assert ratios(rows) == [("net", "CPU", 0.2, 0.25)]


def test_the_page_sets_planners_side_by_side_and_says_which_counts_are_others() -> None:
    other = replace(row("inductor", 7, 3, None, "H200"), kernels=None, predicted_us=None)
    text = markdown([row("stitch", 5, 1, 10, "H200"), other])
    assert "| model | inductor (its own counts) | stitch |" in text
    assert "| net | 7 (3) | 5 (1) |" in text
    assert "| net | H200 | inductor |  | 7 | 3 |  |  |" in text


def test_the_page_says_where_goals_are_met_and_missed() -> None:
    rows = [row("xla", 20, 10, 1000), row("stitch", 10, 2, 250)]
    rows += [row("xla", 20, 10, 1000, "H200"), row("stitch", 10, 4, 510, "H200")]
    text = markdown(rows)
    assert "| net | CPU | 20% | 25% |  |" in text
    assert "| net | H200 | 40% | 51% | kernels missed, traffic missed |" in text
    assert "Both goals are met on net (CPU); missed on net (H200)." in text


def test_a_page_keeps_what_stands_around_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{fusion.BEGIN}\nold\n{fusion.END}\nafter\n", encoding="utf-8")
    write(page, "new")
    assert page.read_text(encoding="utf-8") == f"before\n{fusion.BEGIN}\n\nnew\n\n{fusion.END}\nafter\n"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(SystemExit, match="lacks the markers"):
        write(page, "new")


def test_results_are_saved_with_date_command_and_versions(tmp_path: Path) -> None:
    path = tmp_path / "results" / "fusion.json"
    save([row("xla", 20, 10, 1000)], ["--models", "net"], path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["command"] == "python -m benchmarks.fusion --models net"
    assert content["versions"]["tilestitch"] and content["date"]
    assert content["results"][0]["launches"] == 20


# -- Inductor --------------------------------------------------------------------------------------------------------

PROGRAM = """
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', ''' ... ''')
class Runner:
    def call(self, args):
        buf0 = empty_strided_cuda((8, 64), (64, 1), torch.float32)
        triton_poi_fused_add_0.run(arg0_1, buf0, 512, stream=stream0)
        extern_kernels.addmm(arg1_1, buf0, reinterpret_tensor(arg2_1, (64, 64), (1, 64), 0), out=buf1)
        buf2 = torch.ops.aten._scaled_dot_product_efficient_attention.default(buf1, buf1, buf1, None, False)
        buf3 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf1, buf1, buf1)
        buf4 = extern_kernels.convolution(buf3, arg3_1, stride=(1, 1))
        triton_poi_fused_add_0.run(buf4, buf0, 512, stream=stream0)
        buf5 = torch.ops.aten.max_pool3d_with_indices.default(buf4, [2, 2, 2])
        arg0_1.copy_(buf5)
        return (buf5, )
"""


def test_calls_of_a_generated_program_are_counted_by_kind() -> None:
    found = inductor.count(PROGRAM)
    assert found == inductor.Counts(triton=2, gemm=1, convolution=1, attention=2, other=2)
    assert (found.launches, found.memory_bound) == (8, 4)


def test_a_program_of_another_form_is_an_error() -> None:
    with pytest.raises(inductor.InductorError, match="another form"):
        inductor.count("def main(): pass")


def test_a_small_network_is_lowered_for_a_gpu_that_is_not_there() -> None:
    pytest.importorskip("triton")
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64)).eval()
    tensor = torch.randn(8, 64)
    exported = inductor.export(module, [tensor])
    found = inductor.count(inductor.lower(exported.graph_module, inductor.arguments(exported, [tensor])))
    assert (found.triton, found.gemm, found.other) == (2, 2, 0)


def test_a_recurrent_layer_is_unrolled_and_its_cells_are_fused() -> None:
    pytest.importorskip("triton")
    import torch
    from torch import nn

    tensor = torch.randn(3, 1, 64)
    exported = inductor.export(nn.LSTM(64, 32, bidirectional=True).eval(), [tensor])
    found = inductor.count(inductor.lower(exported.graph_module, inductor.arguments(exported, [tensor])))
    assert found.other == 0
    assert 6 <= found.gemm <= 8  # a step of a direction, and what both read
