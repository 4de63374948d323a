"""Indices of several gathers of a kernel are checked by one launch, and messages name the node at fault."""

from __future__ import annotations

from itertools import count

import numpy as np
import onnx
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.passes.plan.index_checks import MOST_TOGETHER
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.errors import ExecutionError

ROWS = (5, 1, 11, 7)
"""Rows of the tables."""
INDICES = (3, 300, 1, 3)
"""Indices into each, of which there are more than threads of a block."""


def lookups(parts: int = 1) -> onnx.ModelProto:
    """Return `parts` kernels apart by a multiplication, each of a row of every table for each index."""
    tables = ", ".join(f"float[{rows},32] t{i}" for i, rows in enumerate(ROWS))
    indices = ", ".join(f"int64[{n}] i{part}_{i}" for part in range(parts) for i, n in enumerate(INDICES))
    bodies, results = [], []
    for part in range(parts):
        gathered = [f"g{part}_{i}" for i in range(len(ROWS))]
        bodies += [f"[n{part}_{i}] {g} = Gather(t{i}, i{part}_{i})" for i, g in enumerate(gathered)]
        bodies.append(f"y{part} = Concat<axis=0>({', '.join(gathered)})")
        results.append(f"float[{sum(INDICES)},32] y{part}")
    text = f"g ({tables}, {indices}) => ({', '.join(results)}) {{ {' '.join(bodies)} }}"
    model: onnx.ModelProto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    return model


def feeds(parts: int = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    tables = {f"t{i}": random.standard_normal((rows, 32)).astype("float32") for i, rows in enumerate(ROWS)}
    return tables | {
        f"i{part}_{i}": random.integers(-ROWS[i], ROWS[i], n) for part in range(parts) for i, n in enumerate(INDICES)
    }


def checks_of(compiled: CompiledModel) -> list[str]:
    launches = (launch["symbol"] for kernel in compiled.explain()["kernels"] for launch in kernel["launches"])
    return [symbol for symbol in launches if symbol.startswith("check_")]


@pytest.mark.parametrize("order", ["in_order", "reversed", "adversarial"])
def test_one_launch_checks_the_indices_of_all_gathers_of_a_kernel(order: str) -> None:
    compiled = compile_model(lookups(), "emulator:sm_90a")
    assert len(checks_of(compiled)) == 1
    given = feeds()
    with load(compiled.to_bytes(), EmulatorOptions(block_order=order, seed=3)) as module:
        (found,) = module.run(given).values()
    np.testing.assert_array_equal(found, np.concatenate([given[f"t{i}"][given[f"i0_{i}"]] for i in range(len(ROWS))]))


@pytest.mark.parametrize(("number", "place", "index"), [(0, 2, 5), (1, 299, 1), (1, 0, -2), (2, 0, 11), (3, 1, -8)])
@pytest.mark.parametrize("part", [0, 1])
def test_messages_name_the_node_whose_index_is_out_of_range(part: int, number: int, place: int, index: int) -> None:
    """Also where the same kernel looks up other indices for other nodes."""
    given = feeds(2)
    given[f"i{part}_{number}"][place] = index
    compiled = compile_model(lookups(2), "emulator:sm_90a")
    with load(compiled.to_bytes(), "emulator") as module, pytest.raises(ExecutionError) as raised:
        module.run(given)
    assert f"n{part}_{number}" in str(raised.value).partition("range")[2]


def test_many_gathers_are_checked_by_several_launches() -> None:
    number = MOST_TOGETHER + 1
    names = [name for name, _ in zip((f"i{n}" for n in count()), range(number))]
    gathers = " ".join(f"g{name} = Gather(t, {name})" for name in names)
    text = f"""g (float[9,32] t, {", ".join(f"int64[1] {n}" for n in names)}) => (float[{number},32] y) {{
        {gathers} y = Concat<axis=0>({", ".join(f"g{n}" for n in names)})
    }}"""
    compiled = compile_model(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}'), "emulator:sm_90a")
    assert len(checks_of(compiled)) == 2
