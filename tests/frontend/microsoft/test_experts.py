"""Mixtures of experts, of floats and of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.checks import assert_close, floats
from tests.frontend.microsoft.checks import Arrays, check_node, computed, node_model, run_ort, typed
from tilestitch.compiler.frontend import ConversionError, import_model

TOKENS, HIDDEN, INNER, EXPERTS = 5, 8, 6, 4
ROUTER = 2 * floats(TOKENS, EXPERTS, seed=1)


def layers(inner: int = INNER) -> list[np.ndarray]:
    first, second = floats(EXPERTS, inner, HIDDEN, seed=2), floats(EXPERTS, HIDDEN, INNER, seed=4)
    return [first, floats(EXPERTS, inner, seed=3), second, floats(EXPERTS, HIDDEN, seed=5)]


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("normalised", [0, 1])
@pytest.mark.parametrize("shape", [(TOKENS, HIDDEN), (1, TOKENS, HIDDEN)])
def test_the_best_experts(k: int, normalised: int, shape: tuple[int, ...]) -> None:
    check_node("MoE", [floats(*shape), ROUTER, *layers()], {"k": k, "normalize_routing_weights": normalised})


def test_experts_that_are_left_out_do_not_count_even_if_infinite() -> None:
    first, bias, second, last = layers()
    worst = int(ROUTER[0].argmin())
    second[worst] = np.inf
    given = [floats(1, HIDDEN), ROUTER[:1], first, bias, second, last]
    check_node("MoE", given, {"k": 2, "activation_type": "silu"})


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity"])
def test_activations(kind: str) -> None:
    first, _, second, _ = layers()
    given = [floats(TOKENS, HIDDEN), ROUTER, first, None, second]
    check_node("MoE", given, {"k": 2, "activation_type": kind})


@pytest.mark.parametrize("limits", [{}, {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.7}])
@pytest.mark.parametrize("fusion", [0, 1, 2])
def test_swiglu(limits: dict[str, float], fusion: int) -> None:
    """ONNX Runtime's kernel has fusion 1 only; the others are the same weights in another order."""
    x, (first, bias, *rest) = floats(TOKENS, HIDDEN), layers(2 * INNER)
    attrs: dict[str, Any] = {"k": 2, "activation_type": "swiglu", **limits}
    by_turns: Arrays = [x, ROUTER, first, bias, *rest]
    feeds = {f"x{i}": value for i, value in enumerate(by_turns) if value is not None}
    wanted = run_ort(node_model("MoE", by_turns, attrs | {"swiglu_fusion": 1}), feeds)
    apart = [(w[:, ::2].copy(), w[:, 1::2].copy()) for w in (first, bias)]
    halved = [np.concatenate(pair, 1) for pair in apart]
    given: dict[int, Arrays] = {
        0: [x, ROUTER, apart[0][0], apart[1][0], *rest, apart[0][1], apart[1][1]], 1: by_turns,
        2: [x, ROUTER, *halved, *rest],
    }  # fmt: skip
    check_node("MoE", given[fusion], attrs | {"swiglu_fusion": fusion}, reference=lambda *_: wanted)


def quantised(width: int, depth: int, bits: int, blocks: int, zeros: bool, seed: int) -> list[np.ndarray | None]:
    """Codes, scales and zero points; `blocks` 0 for one scale a column."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (EXPERTS, width, depth * bits // 8)).astype(np.uint8)
    shape = (EXPERTS, width, blocks) if blocks else (EXPERTS, width)
    zero_shape = (*shape[:-1], -(-shape[-1] * bits // 8))
    scales = rng.uniform(0.001, 0.02, shape).astype(np.float32)
    return [codes, scales, rng.integers(0, 256, zero_shape).astype(np.uint8) if zeros else None]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_integers(bits: int, blocked: bool, zeros: bool) -> None:
    """With blocks of 8 bits, ONNX Runtime's kernel rounds tokens to 8 bits, too: a hundredth of the largest result."""
    hidden, inner = 32, 16
    first = quantised(inner, hidden, bits, 2 if blocked else 0, zeros, 1)
    second = quantised(hidden, inner, bits, 1 if blocked else 0, zeros, 2)
    given = [floats(TOKENS, hidden), ROUTER, *first[:2], floats(EXPERTS, inner, seed=3), *second[:2], None]
    given += [None, None, None, first[2], second[2]]
    attrs = {"k": 2, "expert_weight_bits": bits, "activation_type": "silu", "normalize_routing_weights": 1}
    if blocked:
        attrs["block_size"] = 16
    ours, theirs, _ = computed("QMoE", given, attrs, constants=(2, 3, 5, 6, 11, 12))
    if blocked and bits == 8:
        assert np.abs(ours[0] - theirs[0]).max() <= 0.01 * np.abs(theirs[0]).max()
    else:
        assert_close(ours[0], theirs[0])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "hidden", "inner", "block"), [(4, 48, 8, 32), (4, 8, 24, 16), (2, 40, 104, 16)])
def test_blocks_that_do_not_divide_a_column(bits: int, hidden: int, inner: int, block: int, zeros: bool) -> None:
    """ONNX Runtime's kernel takes the weights that are left over as a block of their own."""
    first = quantised(inner, hidden, bits, -(-hidden // block), zeros, 1)
    second = quantised(hidden, inner, bits, -(-inner // block), zeros, 2)
    given = [floats(TOKENS, hidden), ROUTER, *first[:2], None, *second[:2], None]
    given += [None, None, None, first[2], second[2]]
    attrs = {"k": 2, "expert_weight_bits": bits, "normalize_routing_weights": 1, "block_size": block}
    check_node("QMoE", given, attrs, constants=(2, 3, 5, 6, 11, 12))


@pytest.mark.parametrize("constants", [(), (2, 3, 5, 6)])
@pytest.mark.parametrize(("x", "scale"), [("float32", "float16"), ("float16", "float32")])
def test_scales_of_another_dtype(x: str, scale: str, constants: tuple[int, ...]) -> None:
    (codes, scales, _), (last, last_scales, _) = (quantised(w, d, 4, 0, False, w) for w, d in ((16, 32), (32, 16)))
    assert scales is not None and last_scales is not None
    given = [floats(TOKENS, 32).astype(x), ROUTER.astype(x), codes, scales.astype(scale), None, last]
    given += [last_scales.astype(scale), None]
    check_node("QMoE", given, {"k": 2, "normalize_routing_weights": 1}, constants=constants)


def test_other_weights_for_mixing() -> None:
    first, second = (quantised(w, d, 4, 0, False, s) for w, d, s in ((16, 32, 1), (32, 16, 2)))
    mixing = np.abs(floats(TOKENS, EXPERTS, seed=7))
    given = [floats(TOKENS, 32), ROUTER, *first[:2], None, *second[:2], *[None] * 7, mixing]
    check_node("QMoE", given, {"k": 2, "activation_type": "silu"}, constants=(2, 3, 5, 6))


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"use_sparse_mixer": 1}, "use_sparse_mixer"), ({"activation_type": "relu2"}, "'relu2'"), ({"k": 9}, "k is 9"),
        ({"activation_type": "swiglu", "swiglu_fusion": 0}, "swiglu_fusion is 0"),
    ],
)  # fmt: skip
def test_refusals(attrs: dict[str, Any], message: str) -> None:
    x = floats(TOKENS, HIDDEN)
    with pytest.raises(ConversionError, match=message):
        import_model(typed(node_model("MoE", [x, ROUTER, *layers()], attrs), [x]))


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({}, "normalize_routing_weights is 0"), ({"quant_type": "fp8"}, "quant_type"),
        ({"weights_prepacked": 1}, "prepacked"), ({"expert_weight_bits": 3, "normalize_routing_weights": 1}, "is 3"),
    ],
)  # fmt: skip
def test_refusals_of_integers(attrs: dict[str, Any], message: str) -> None:
    first, second = (quantised(w, d, 4, 0, False, s) for w, d, s in ((16, 32, 1), (32, 16, 2)))
    given = [floats(TOKENS, 32), ROUTER, *first[:2], None, *second[:2]]
    with pytest.raises(ConversionError, match=message):
        import_model(typed(node_model("QMoE", given, attrs), [floats(TOKENS, 32)]))


@pytest.mark.parametrize(
    ("blocks", "size", "message"),
    [
        (2, 0, "fc1_scales has 3 axes and block_size is 0"), (0, 16, "fc1_scales has 2 axes and block_size is 16"),
        (3, 16, "fc1_scales has 3 scales for a column of 32 weights, but block_size 16 makes 2"),
    ],
)  # fmt: skip
def test_refusals_of_scales(blocks: int, size: int, message: str) -> None:
    first, second = quantised(16, 32, 4, blocks, False, 1), quantised(32, 16, 4, blocks, False, 2)
    given = [floats(TOKENS, 32), ROUTER, *first[:2], None, *second[:2]]
    attrs = {"normalize_routing_weights": 1, "block_size": size}
    with pytest.raises(ConversionError, match=message):
        import_model(typed(node_model("QMoE", given, attrs), [floats(TOKENS, 32)]))
