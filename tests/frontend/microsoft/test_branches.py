"""Gates, normalised branches and hyper-connections of language models; their rotary positions and routers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import check_node, node_model
from tilestitch.compiler.frontend import ConversionError, import_model


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gated_rms_norm(activation: str, groups: int, dtype: str) -> None:
    x, scale, gate = (
        floats(*shape, seed=i, dtype=dtype) for i, shape in enumerate([(2, 5, groups * 7), (7,), (2, 5, groups * 7)])
    )
    check_node("GatedRMSNorm", [x, scale, gate], {"activation": activation, "epsilon": 1e-3})


@pytest.mark.parametrize("scale", [None, (7,), (3, 7), (21,)], ids=str)
@pytest.mark.parametrize("flat", [False, True])
def test_branchwise_rms_norm(scale: tuple[int, ...] | None, flat: bool) -> None:
    x = floats(2, 5, 21) if flat else floats(2, 5, 3, 7)
    given = [x, None if scale is None else floats(*scale, seed=1)]
    check_node("BranchwiseRMSNorm", given, {"num_branches": 3} if flat else {})


def test_gated_add() -> None:
    check_node("GatedAdd", [floats(2, 5, 7), floats(2, 5, 7, seed=1), floats(2, 5, 1, seed=2)])


@pytest.mark.parametrize(("gates", "flat"), [*product([(3,), (3, 1), (3, 7)], [False, True]), ((21,), True)], ids=str)
def test_branches_reduced_to_one(gates: tuple[int, ...], flat: bool) -> None:
    x = floats(2, 5, 21) if flat else floats(2, 5, 3, 7)
    attrs = {"reduction_scale": 0.5} | ({"num_branches": 3} if flat else {})
    check_node("HyperConnectionPreMix", [x, floats(2, 5, *gates, seed=1)], attrs)


@pytest.mark.parametrize("gates", [(3,), (3, 1), (3, 7)], ids=str)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_a_result_injected_into_branches(gates: tuple[int, ...], mixed: bool, flat: bool) -> None:
    x = floats(2, 5, 21) if flat else floats(2, 5, 3, 7)
    matrix = floats(2, 5, 3, 3, seed=3) if mixed else None
    given = [x, floats(2, 5, 7, seed=1), floats(2, 5, *gates, seed=2), matrix]
    check_node("HyperConnectionPostMix", given, {"num_branches": 3} if flat else {})


@pytest.mark.parametrize("outputs", [1, 2])
def test_engram_gate(outputs: int) -> None:
    key, query = floats(2, 5, 3, 7, seed=0), floats(2, 5, 3, 7, seed=1)
    scales = [floats(3, 7, seed=i) for i in (3, 4, 5)]
    check_node("EngramGate", [key, query, floats(2, 5, 7, seed=2), *scales[: 1 + outputs]], outputs=outputs)


# -- rotary positions of images and texts ---------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("sections", [(2, 3, 3), (4, 2, 2), (8, 0, 0)], ids=str)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
def test_three_positions_a_token(layout: int, sections: tuple[int, ...], interleaved: int, rank: int) -> None:
    angles = np.random.default_rng(0).uniform(0, 6, (20, 8))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    x = floats(2, 3, 5, 16) if rank == 4 else floats(2, 5, 48)
    positions = np.random.default_rng(1).integers(0, 20, (3, 2, 5))
    attrs = {"mrope_section": sections, "mrope_layout": layout, "interleaved": interleaved, "num_heads": 3}
    check_node("MRotaryEmbedding", [x, positions, cos, sin], attrs)


@pytest.mark.parametrize(
    "attrs", [{"mrope_section": (2, 2, 2)}, {"mrope_section": (2, 3, 3), "mrope_layout": 2}], ids=str
)
def test_sections_that_do_not_fit(attrs: dict[str, Any]) -> None:
    table = floats(20, 8)
    given = [floats(1, 3, 5, 16), np.zeros((3, 1, 5), np.int64), table, table]
    with pytest.raises(ConversionError, match="mrope_section"):
        import_model(node_model("MRotaryEmbedding", given, attrs))


# -- routers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "active", "several", "best"), [(1, 1, 2, 3), (4, 2, 2, 3), (3, 1, 1, 4), (4, 3, 9, 5), (12, 4, 2, 3)]
)
def test_the_best_experts_of_the_best_groups(groups: int, active: int, several: int, best: int) -> None:
    attrs = {"n_group": groups, "topk_group": active, "group_topk": several, "top_k": best}
    check_node("MoEGroupRouter", [floats(2, 7, 12) * 3, floats(12, seed=1)], attrs)


@pytest.mark.parametrize("attrs", [{"n_group": 5, "top_k": 1}, {"n_group": 4, "top_k": 4}], ids=str)
def test_groups_that_do_not_fit(attrs: dict[str, Any]) -> None:
    with pytest.raises(ConversionError, match="cannot be chosen of"):
        import_model(node_model("MoEGroupRouter", [floats(7, 12), floats(12, seed=1)], attrs))
