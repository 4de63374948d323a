"""Biases by distance. ONNX Runtime has a kernel of them for GPUs alone: the reference is the arithmetic of T5."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.frontend.checks import floats, ints
from tests.frontend.microsoft.checks import node_model, typed
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import ConversionError, import_model
from tilestitch.runtime import load


def bucket(distance: int, buckets: int, most: int, two_sided: bool) -> int:
    """That of T5: half of the buckets are exact, the others logarithmic up to `most`."""
    first = 0
    if two_sided:
        buckets //= 2
        first, distance = (buckets if distance > 0 else 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    far = exact + int(math.log(distance / exact) / math.log(most / exact) * (buckets - exact))
    return first + min(far, buckets - 1)


def bias_model(table: np.ndarray, most: int, two_sided: int = 0) -> ModelProto:
    """Biases for all pairs of places in `x`."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[q, k] x) => (float[1, 3, q, k] y) {{
            sizes = Shape(x)
            zero = Constant<value_int=0>()
            one = Constant<value_int=1>()
            queries = Gather<axis=0>(sizes, zero)
            keys = Gather<axis=0>(sizes, one)
            y = com.microsoft.RelativePositionBias<is_bidirectional={two_sided}, max_distance={most}>(
                table, queries, keys)
        }}""")
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    return model


@pytest.mark.parametrize("two_sided", [0, 1])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 21), (4, 3)])
def test_every_distance(two_sided: int, buckets: int, most: int, tmp_path: Path) -> None:
    table = floats(buckets, 3)
    compile_model(bias_model(table, most, two_sided), host_steps=False, cache=False).save(tmp_path / "m.tsm")
    ours, by_head = load(tmp_path / "m.tsm"), table.reshape(3, buckets)
    for queries, keys in ((1, 1), (7, 7), (1, 300), (149, 151)):
        chosen = [[bucket(k - q, buckets, most, bool(two_sided)) for k in range(keys)] for q in range(queries)]
        got = ours.run({"x": np.zeros((queries, keys), np.float32)})["y"]
        np.testing.assert_array_equal(got, by_head[:, np.array(chosen)][None])


def test_as_many_distances_as_there_are_make_biases() -> None:
    """However large `max_distance` is."""
    table, most = floats(8, 3), 10**9
    compiled = compile_model(bias_model(table, most), dims={"q": (1, 5), "k": (1, 7)}, cache=False)
    assert max(value.tensor_type.nbytes for value in compiled.specialisations[0].graph.constants) < 1000
    chosen = [[bucket(k - q, 8, most, False) for k in range(7)] for q in range(5)]
    with load(compiled.to_bytes()) as module:
        got = module.run({"x": np.zeros((5, 7), np.float32)})["y"]
    np.testing.assert_array_equal(got, table.reshape(3, 8)[:, np.array(chosen)][None])


def test_too_many_distances_are_refused_with_a_remedy() -> None:
    with pytest.raises(ConversionError, match=r"max_distance is 1000000000 .*--dim"):
        compile_model(bias_model(floats(8, 3), 10**9))


def test_too_few_buckets_are_refused() -> None:
    operands = [floats(2, 3), np.array(4), ints(4)]
    attributes = {"max_distance": 1, "is_bidirectional": 0}
    model = typed(node_model("RelativePositionBias", operands, attributes, constants=(1, 2)), [floats(1, 3, 4, 4)])
    with pytest.raises(ConversionError, match="max_distance"):
        import_model(model)
