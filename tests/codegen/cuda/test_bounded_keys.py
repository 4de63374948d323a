"""Keys that masks by position hide: kernels leave them out also where only a run knows which, and no mask is stored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from tests.codegen.cuda.test_cuda_attention import ORDERS
from tilestitch.compiler import compile_model
from tilestitch.compiler.compiled import CompiledModel
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions

WIDTH, WINDOW = 16, 40
MASKS = {
    "causal": "seen = LessOrEqual(keys, ends)",
    "window": "soon = LessOrEqual(keys, ends)  from = Sub(ends, wide)  late = Greater(keys, from)"
    "  seen = And(soon, late)",
    "padded": "soon = LessOrEqual(keys, ends)  real = Cast<to=9>(valid)  row = Unsqueeze(real, one)"
    "  seen = And(soon, row)",
    "unlimited": "far = Sub(ends, largest)  seen = Greater(keys, far)",
}  # fmt: skip


def decoder(mask: str, dtype: str, heads: tuple[int, int] = (2, 2), sizes: str = "b,s,t") -> ModelProto:
    """Two layers of attention with one mask, whose lengths are data."""
    kind = {"float16": "float16", "float32": "float"}[dtype]
    b, s, t = sizes.split(",")
    cache = f"{kind}[{b},{heads[1]},{t},{WIDTH}]"
    repeated = "again = Identity(k)  values = Identity(v)"
    if heads[0] != heads[1]:
        repeated = "  ".join(
            f"{x}5 = Unsqueeze({x}, two)  {x}6 = Expand({x}5, copies)  {name} = Reshape({x}6, together)"
            for x, name in (("k", "again"), ("v", "values"))
        )
    layer = """turned{0} = Transpose<perm=[0,1,3,2]>(again)
        scores{0} = MatMul({1}, turned{0})  masked{0} = Add(scores{0}, mask)
        weights{0} = Softmax<axis=-1>(masked{0})  {2} = MatMul(weights{0}, values)"""
    statements = f"""
        nought = Constant<value_int=0>()  step = Constant<value_int=1>()  one = Constant<value_ints=[1]>()
        two = Constant<value_ints=[2]>()  last = Constant<value_ints=[-1]>()  first = Constant<value_ints=[0]>()
        wide = Constant<value_ints=[{WINDOW}]>()  largest = Constant<value_ints=[{2**63 - 1}]>()
        sizes_q = Shape<start=2,end=3>(q)  s = Squeeze(sizes_q)  queries = Range(nought, s, step)
        sizes_k = Shape<start=2,end=3>(k)  t = Squeeze(sizes_k)  positions = Range(nought, t, step)
        keys = Unsqueeze(positions, first)  rows = Unsqueeze(queries, last)
        before1 = Unsqueeze(before, last)  before2 = Unsqueeze(before1, last)  ends = Add(rows, before2)
        {MASKS[mask]}
        shown = Unsqueeze(seen, one)  zero = CastLike(zero32, q)  hidden = CastLike(infinity, q)
        mask = Where(shown, zero, hidden)
        {repeated}
        {layer.format("", "q", "y")}
        {layer.format("2", "y", "z")}"""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
      g ({kind}[{b},{heads[0]},{s},{WIDTH}] q, {cache} k, {cache} v, int64[{b}] before, int64[{b},{t}] valid)
         => ({kind}[{b},{heads[0]},{s},{WIDTH}] z)
      <float zero32 = {{0}}> {{ {statements.replace("  ", chr(10))} }}""")
    known = {"infinity": np.float32(-np.inf), "copies": np.array([1, 1, heads[0] // heads[1], 1, 1])}
    known["together"] = np.array([0, heads[0], -1, WIDTH])
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(x), n) for n, x in known.items())
    return model


@lru_cache
def compiled(mask: str, dtype: str, heads: tuple[int, int] = (2, 2), sizes: str = "b,s,t") -> CompiledModel:
    return compile_model(decoder(mask, dtype, heads, sizes), "emulator:sm_90a")


def feeds(
    sizes: tuple[int, int, int], before: Sequence[int], dtype: str, heads: tuple[int, int] = (2, 2)
) -> dict[str, np.ndarray]:
    rng, (b, s, t) = np.random.default_rng(sum(sizes)), sizes
    shapes = {"q": (b, heads[0], s, WIDTH), "k": (b, heads[1], t, WIDTH), "v": (b, heads[1], t, WIDTH)}
    found = {name: (rng.standard_normal(shape) * 0.5).astype(dtype) for name, shape in shapes.items()}
    return {**found, "before": np.array(before), "valid": (rng.random((b, t)) < 0.7).astype(np.int64)}


def expected(mask: str, given: dict[str, np.ndarray], layers: int = 2) -> np.ndarray:
    y, k, v = (given[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(x, y.shape[1] // x.shape[1], axis=1) for x in (k, v))
    keys, ends = np.arange(k.shape[2]), np.arange(y.shape[2])[:, None] + given["before"][:, None, None]
    seen = {
        "causal": keys <= ends, "window": (keys <= ends) & (keys > ends - WINDOW),
        "padded": (keys <= ends) & (given["valid"][:, None] != 0), "unlimited": None,
    }[mask]  # fmt: skip
    if mask == "unlimited":
        seen = keys > ends - (2**63 - 1)  # overflows as the model does
    for _ in range(layers):
        scores = np.where(seen[:, None], y @ np.swapaxes(k, -1, -2), -np.inf)
        with np.errstate(all="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            y = weights / weights.sum(-1, keepdims=True) @ v
    return y


def assert_close(found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    tolerance = {"float16": 4e-3, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


LENGTHS = (
    ((1, 1, 1), [0]), ((2, 3, 130), [127, 40]), ((1, 131, 131), [0]), ((2, 70, 257), [187, 100]),
    ((3, 1, 300), [299, 0, 150]), ((2, 100, 5), [-30, 9]), ((1, 9, 70), [-70]), ((1, 5, 67), [10**12]),
)  # fmt: skip
"""Sizes, and positions of the first queries."""


@pytest.mark.parametrize(("mask", "dtype"), [*((mask, "float16") for mask in MASKS), ("window", "float32")])
def test_any_lengths(mask: str, dtype: str) -> None:
    module = load(compiled(mask, dtype).to_bytes(), device="emulator")
    for sizes, before in LENGTHS:
        given = feeds(sizes, before, dtype)
        (found,) = module.run(given).values()
        assert_close(found, expected(mask, given), dtype)


@pytest.mark.parametrize("options", ORDERS[1:], ids=["reversed", "random"])
def test_in_any_order_of_blocks(options: EmulatorOptions) -> None:
    given = feeds((1, 5, 700), [600], "float16")
    (found,) = load(compiled("window", "float16").to_bytes(), device=options).run(given).values()
    assert_close(found, expected("window", given), "float16")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tiles_of_hidden_keys_are_not_read(dtype: str) -> None:
    """NaN among them does no harm, though weights of zero times NaN would."""
    given = feeds((1, 70, 400), [150], dtype)
    want = expected("window", given)
    for name in "kv":
        given[name][:, :, 320:] = np.nan
        given[name][:, :, :64] = np.nan
    (found,) = load(compiled("window", dtype).to_bytes(), device="emulator").run(given).values()
    assert_close(found, want, dtype)


@pytest.mark.parametrize("mask", ["causal", "window", "padded"])
def test_each_layer_computes_the_mask_that_they_share(mask: str) -> None:
    """A mask in memory has as many elements as all scores of a head."""
    one = compiled(mask, "float16").specialisations[0]
    values = {value.name: value for node in one.graph.nodes for value in node.outputs}
    scores = [values[name].shape[-2:] for name in values if name.startswith("masked")]
    assert len(scores) == 2
    assert [group.kind.value for group in one.plan.groups].count("attention") == 2
    assert not [n for group in one.plan.groups for n in group.outputs if values[n].shape[-2:] in scores]


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_a_step_reads_of_a_cache_of_known_size_what_is_in_use(heads: tuple[int, int]) -> None:
    """Also where heads that share keys are rows of one tile."""
    sizes = (2, 1, 500)
    given = feeds(sizes, [100, 127], "float16", heads)
    want = expected("causal", given)
    for name in "kv":
        given[name][:, :, 128:] = np.nan
    model = compiled("causal", "float16", heads, "2,1,500")
    (found,) = load(model.to_bytes(), device="emulator").run(given).values()
    assert_close(found, want, "float16")


@pytest.mark.parametrize(("name", "kind"), [("mask", "FLOAT16"), ("seen", "BOOL"), ("ends", "INT64")])
@pytest.mark.parametrize("sizes", ["b,s,t", "2,1,500"])
def test_masks_that_one_layer_and_the_caller_read(name: str, kind: str, sizes: str) -> None:
    """The kernel that stores the mask reads nothing that only attention has."""
    model = decoder("causal", "float16", sizes=sizes)
    del model.graph.node[-5:]  # the second layer
    model.graph.output[0].name = "y"
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.DataType.Value(kind), None))
    given = feeds((2, 1, 500), [100, 127], "float16")
    found = load(compile_model(model, "emulator:sm_90a").to_bytes(), device="emulator").run(given)
    assert_close(found["y"], expected("causal", given, layers=1), "float16")
    seen = np.arange(500) <= given["before"][:, None, None]
    wanted = {"mask": np.where(seen, 0, -np.inf)[:, None], "seen": seen, "ends": given["before"][:, None, None]}[name]
    np.testing.assert_array_equal(found[name], wanted)


def test_positions_at_the_ends_of_what_is_compared() -> None:
    """Their difference is no number of 64 bits."""
    model = decoder("causal", "float16", sizes="1,1,70")
    keys = next(node for node in model.graph.node if node.output[0] == "keys")
    keys.output[0] = "near"
    model.graph.node.insert(list(model.graph.node).index(keys) + 1, helper.make_node("Add", ["near", "low"], ["keys"]))
    model.graph.initializer.append(numpy_helper.from_array(np.int64(-(2**62)), "low"))
    given = feeds((1, 1, 70), [2**62], "float16")
    (found,) = load(compile_model(model, "emulator:sm_90a").to_bytes(), device="emulator").run(given).values()
    assert_close(found, expected("causal", given), "float16")
