"""Operators of language models that keep a state of each head in place of a growing cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnxruntime import InferenceSession

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import check_node, node_model, run_ort
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import ConversionError, import_model
from tilestitch.runtime import load

RULES = ("linear", "gated", "delta", "gated_delta")


def operands(
    tokens: int, heads: tuple[int, int], rule: str, *, batch: int = 2, past: bool = True, window: int = 0,
    by_element: bool = False, dtype: str = "float32",
) -> list[np.ndarray | None]:  # fmt: skip
    """Of LinearAttention, with heads of 8 elements of keys and 5 of values."""
    (q, kv), random = heads, np.random.default_rng(7)
    state = (*((window,) if window else ()), batch, kv, 8, 5)
    decay = -random.uniform(0, 1, (batch, tokens, kv * 8 if by_element else kv)) if "gated" in rule else None
    rate = random.uniform(0, 1, (batch, tokens, kv)) if "delta" in rule else None
    found = [
        floats(batch, tokens, q * 8, seed=1), floats(batch, tokens, kv * 8, seed=2) / 3,
        floats(batch, tokens, kv * 5, seed=3), floats(*state, seed=4) if past else None, decay, rate,
    ]  # fmt: skip
    kept = {3: "float32"}
    return [x if x is None else x.astype(kept.get(i, dtype)) for i, x in enumerate(found)]


def heads_of(q: int, kv: int, rule: str, **more: Any) -> dict[str, Any]:
    return {"q_num_heads": q, "kv_num_heads": kv, "update_rule": rule, **more}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("heads", [(3, 3), (4, 2), (2, 6)], ids=str)
def test_rules_and_heads(rule: str, tokens: int, heads: tuple[int, int]) -> None:
    check_node("LinearAttention", operands(tokens, heads, rule), heads_of(*heads, rule), outputs=2)


@pytest.mark.parametrize("by_element", [False, True])
@pytest.mark.parametrize("tokens", [1, 37])
@pytest.mark.parametrize(("heads", "keys"), [((2, 4), 2), ((2, 6), 2), ((4, 4), 2), ((8, 4), 1)], ids=str)
def test_keys_of_several_values(heads: tuple[int, int], keys: int, tokens: int, by_element: bool) -> None:
    """As in Qwen3.5, whose keys have half of the heads of its values."""
    given = operands(tokens, heads, "gated_delta", by_element=by_element)
    given[1] = floats(2, tokens, keys * 8, seed=2) / 3
    check_node("LinearAttention", given, heads_of(*heads, "gated_delta"), outputs=2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("tokens", "heads"), [(16, (3, 3)), (37, (4, 2)), (64, (2, 6)), (600, (1, 1))], ids=str)
def test_many_tokens_in_chunks(rule: str, tokens: int, heads: tuple[int, int]) -> None:
    check_node("LinearAttention", operands(tokens, heads, rule), heads_of(*heads, rule), outputs=2)


def test_many_tokens_of_half_floats() -> None:
    given = operands(37, (4, 2), "gated_delta", dtype="float16")
    check_node("LinearAttention", given, heads_of(4, 2, "gated_delta"), outputs=2)


@pytest.mark.parametrize("case", ["equal keys", "forgotten", "steep"])
def test_chunks_that_are_hard(case: str) -> None:
    """Equal keys, for which a series of powers would cancel; decays to nothing, and by large steps."""
    given = operands(70, (2, 2), "gated_delta")
    _, key, *_, decay, rate = given
    assert key is not None and decay is not None and rate is not None
    if case == "equal keys":
        heads = key.reshape(2, 70, 2, 8)
        heads[:] = heads[:, :1] / np.linalg.norm(heads[:, :1], axis=-1, keepdims=True)
        rate[:], decay[:] = 1, -1e-4
    elif case == "forgotten":
        decay[:, [5, 6, 40]] = -np.inf
    else:
        decay *= 300
    check_node("LinearAttention", given, heads_of(2, 2, "gated_delta"), outputs=2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_decay_for_each_element_of_a_key_without_a_past(dtype: str) -> None:
    given = operands(3, (2, 2), "gated", past=dtype == "float16", by_element=True, dtype=dtype)
    check_node("LinearAttention", given, heads_of(2, 2, "gated", scale=0.5), outputs=2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("past", [False, True])
def test_no_tokens(rule: str, past: bool) -> None:
    check_node("LinearAttention", operands(0, (4, 2), rule, past=past), heads_of(4, 2, rule), outputs=2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tokens", [0, 5, 20])
@pytest.mark.parametrize("past", [False, True])
def test_no_sequences(rule: str, tokens: int, past: bool) -> None:
    given = operands(tokens, (4, 2), rule, batch=0, past=past)
    check_node("LinearAttention", given, heads_of(4, 2, rule), outputs=2)


@pytest.mark.parametrize(("tokens", "window"), [(1, 3), (5, 3), (3, 3)])
def test_a_window_of_states(tokens: int, window: int) -> None:
    """ONNX Runtime's kernel for CPUs has no windows: its states after fewer tokens are what they hold."""
    attrs, given = heads_of(2, 2, "gated_delta"), operands(tokens, (2, 2), "gated_delta", window=window)
    assert given[3] is not None
    last = [given[3][-1] if i == 3 else x for i, x in enumerate(given)]

    def after(count: int) -> list[np.ndarray]:
        first = [x if x is None or i == 3 else x[:, :count] for i, x in enumerate(last)]
        feeds = {f"x{i}": x for i, x in enumerate(first) if x is not None}
        return run_ort(node_model("LinearAttention", first, attrs, outputs=2), feeds)

    nothing = [np.zeros_like(last[3])] * (window - min(tokens, window))
    states = [after(count)[1] for count in range(max(1, tokens - window + 1), tokens + 1)]
    wanted = [after(tokens)[0], np.stack([*nothing, *states])]
    check_node("LinearAttention", given, attrs | {"state_window": window}, outputs=2, reference=lambda *_: wanted)


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize(
    ("rule", "gate", "by_element"),
    [
        ("gated_delta", "softplus", False), ("gated_delta", "sigmoid", True), ("gated", "none", False),
        ("delta", "none", False),
    ],
)  # fmt: skip
def test_gated_delta_net(shared: int, rank: int, rule: str, gate: str, by_element: bool) -> None:
    batch, rows, heads, depth, width = 2, 3, 2, 8, 5
    front, many = ((batch * rows,) if rank == 3 else (batch, rows)), heads * shared
    q, k, v = (
        floats(*front, heads, depth, seed=1),
        floats(*front, heads, depth, seed=2),
        floats(*front, many, width, seed=3),
    )
    decay = floats(*front, many, *((depth,) if by_element else ()), seed=4) if "gated" in rule else None
    if decay is not None and gate == "none":
        decay = -np.abs(decay)
    rate = floats(*front, many, seed=5) if "delta" in rule else None
    level = floats(many, seed=7) if gate != "none" else None
    bias = floats(many, *((depth,) if by_element else ()), seed=8) if gate != "none" else None
    given = [q, k, v, None, decay, rate, floats(batch, many, width, depth, seed=6), level, bias]
    attrs = {"update_rule": rule, "gate_activation": gate, "qk_l2_norm": 1}
    if rate is not None:
        attrs["beta_activation"] = "sigmoid"
    check_node("GatedDeltaNet", given, attrs, outputs=2)


def test_queries_keys_and_values_in_one_operand() -> None:
    batch, rows, heads, depth, width = 1, 3, 2, 8, 5
    packed = floats(batch * rows, 2 * heads * depth + 2 * heads * width, seed=1) / 3
    given = [packed, None, None, None, None, None, floats(batch, 2 * heads, width, depth, seed=6)]
    check_node("GatedDeltaNet", given, {"update_rule": "linear"}, outputs=2)


@pytest.mark.parametrize("with_rate", [False, True])
def test_gates(with_rate: bool) -> None:
    given = [
        floats(2, 3, 4),
        floats(4, seed=1),
        -np.exp(floats(4, seed=2)),
        floats(2, 3, 4, seed=3) if with_rate else None,
    ]
    check_node("LinearAttentionGate", given, outputs=2 if with_rate else 1)


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("past", [False, True])
def test_causal_convolution(tokens: int, dilation: int, past: bool) -> None:
    reach = 3 * dilation
    given = [
        floats(2, 5, tokens),
        floats(5, 1, 4, seed=1),
        floats(5, seed=2),
        floats(2, 5, reach, seed=3) if past else None,
    ]
    check_node("CausalConvWithState", given, {"dilation": dilation, "activation": "silu"}, outputs=2)


@pytest.mark.parametrize("channels", [(6,), (2, 3)], ids=str)
@pytest.mark.parametrize("tokens", [1, 7])
def test_causal_convolution_of_channels_last(channels: tuple[int, ...], tokens: int) -> None:
    given = [floats(2, tokens, *channels), floats(6, 1, 4, seed=1), None, floats(2, 3, *channels, seed=3)]
    check_node("CausalConvWithState", given, {"channels_last": 1}, outputs=2)


@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_a_window_of_what_convolutions_keep(tokens: int) -> None:
    x, weight, past = floats(2, 5, tokens), floats(5, 1, 4, seed=1), floats(3, 2, 5, 3, seed=3)
    one = [x, weight, None, past[-1]]
    feeds = {"x0": x, "x1": weight, "x3": past[-1]}
    y = run_ort(node_model("CausalConvWithState", one, outputs=2), feeds)[0]
    whole = np.concatenate([past[-1], x], 2)
    ends = range(tokens - 2, tokens + 1)
    states = [whole[:, :, end : end + 3] if end > 0 else np.zeros_like(past[-1]) for end in ends]
    check_node(
        "CausalConvWithState", [x, weight, None, past], {"state_window": 3}, outputs=2,
        reference=lambda *_: [y, np.stack(states)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"update_rule": "sum"}, "update_rule is 'sum', none of linear, gated, delta, gated_delta"),
        ({"state_window": 9}, "state_window is 9, not from 0 to 8"),
        ({"q_num_heads": 3}, "neither of q_num_heads=3 and kv_num_heads=2 is a multiple"),
        ({"update_rule": "delta"}, "update_rule 'delta' needs operand 'beta'"),
        ({"q_num_heads": 4}, "are no heads of 4 for kv_num_heads=2"),
    ],
    ids=str,
)
def test_refusals(attrs: dict[str, Any], message: str) -> None:
    model = node_model("LinearAttention", operands(2, (2, 2), "gated"), heads_of(2, 2, "gated") | attrs, outputs=2)
    with pytest.raises(ConversionError, match=message):
        import_model(model)


def test_a_window_of_states_of_an_open_number_of_tokens_is_refused() -> None:
    model = open_model(window=2)
    with pytest.raises(ConversionError, match="state_window is 2, but the number of tokens is open"):
        compile_model(model)


def open_model(window: int = 0) -> Any:
    given = operands(3, (2, 2), "gated_delta", window=window)
    model = node_model("LinearAttention", given, heads_of(2, 2, "gated_delta", state_window=window), outputs=2)
    for value in model.graph.input:
        if value.name != "x3":
            value.type.tensor_type.shape.dim[1].dim_param = "tokens"
    return model


def test_an_open_number_of_tokens() -> None:
    model = open_model()
    ours = load(compile_model(model, cache=False).to_bytes())
    theirs = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for tokens in (1, 2, 15, 16, 37, 100):
        given = operands(tokens, (2, 2), "gated_delta")
        feeds = {f"x{i}": x for i, x in enumerate(given) if x is not None}
        for got, want in zip(ours.run(feeds).values(), theirs.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
