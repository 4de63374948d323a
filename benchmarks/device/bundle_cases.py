"""What is right or wrong is decided on these models, one or more for each kernel family; they carry their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import onnx

from benchmarks.device.case_blocks import (
    chosen_experts,
    computed_matrices,
    experts,
    linear_attention,
    outer_products,
    quantised,
    turns,
)
from benchmarks.device.case_models import (
    added_up,
    attention,
    block_weights,
    both_softmaxes,
    causal_attention,
    columns_sum,
    conv_relu,
    converted,
    decode_attention,
    decode_gemm,
    dense_norm,
    depthwise,
    elementwise,
    gated,
    integer_conv,
    integers,
    largest,
    largest_places,
    layer_norm,
    linear_gelu,
    long_rows,
    long_sums,
    looked_up,
    lstm,
    max_pool,
    mlp,
    running_sum,
    scattered,
    signal,
    small_floats,
    softmax,
    softmax_sums,
    transpose,
    whole,
    wide_conv,
    wide_gemm,
)
from benchmarks.replay.catalogue import MODELS
from tests.networks import bert, gpt2, residual_block

TARGET = "cuda:h200"


@dataclass(frozen=True)
class Variant:
    """The data type of a case's tensors, and the precision that it is compiled with."""

    dtype: str
    precision: str = "fp32"


VARIANTS = {
    "float32": Variant("float32"),
    "float16": Variant("float16"),
    "bfloat16": Variant("bfloat16"),
    "tf32": Variant("float32", "tf32"),
    "int8": Variant("int8"),
    "uint8": Variant("uint8"),
    "int64": Variant("int64"),
    "e4m3": Variant("float8_e4m3fn"),
    "e4m3_tf32": Variant("float8_e4m3fn", "tf32"),
    "quantised": Variant("float32"),
}
FLOATS = ("float32", "float16", "bfloat16")
GEMMS = (*FLOATS, "tf32")
TWO = ("float32", "float16")
SMALL = ("e4m3", "e4m3_tf32")


@dataclass(frozen=True)
class Family:
    """A case in its variants. smoke: the variants that are run first, with what the emulated device made of them.

    passes: further ones that it is compiled with. target: what it is compiled for. image: the kind of file that its
    kernels travel as. sync: how dependent kernels wait for each other.
    """

    make: Callable[[str], onnx.ModelProto]
    variants: tuple[str, ...]
    smoke: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    target: str = TARGET
    image: str = "cubin"
    sync: str = "off"


def _network(name: str) -> Callable[[str], onnx.ModelProto]:
    return partial(whole, MODELS[name])


APART = ("benchmarks.device.rules:NoBands",)
STAGES = ("benchmarks.device.rules:AllStages",)
PARTS = ("benchmarks.device.rules:NoGridBarriers",)


CASES = {
    "elementwise": Family(elementwise, FLOATS),
    "elementwise_small": Family(partial(elementwise, rows=67, columns=103), ("float32",), ("float32",)),
    "transpose": Family(transpose, TWO),
    "transpose_small": Family(partial(transpose, rows=65, columns=37), ("float16",), ("float16",)),
    "softmax": Family(softmax, FLOATS),
    "softmax_small": Family(partial(softmax, rows=9, columns=1000), FLOATS, ("float32", "bfloat16")),
    "long_rows": Family(long_rows, FLOATS),
    "long_rows_small": Family(partial(long_rows, rows=2, columns=66_004), ("float32",), ("float32",)),
    "columns_sum": Family(columns_sum, TWO),
    "columns_sum_small": Family(partial(columns_sum, rows=70, columns=33), ("float32",), ("float32",)),
    "long_sums": Family(long_sums, TWO, passes=PARTS),
    "long_sums_small": Family(partial(long_sums, rows=2, columns=132_000), ("float32",), ("float32",), PARTS),
    "largest_places": Family(largest_places, ("float32",), ("float32",)),
    "stages": Family(both_softmaxes, FLOATS, ("float32", "float16"), STAGES),
    "softmax_sums": Family(softmax_sums, FLOATS, ("float32", "float16")),
    "layer_norm": Family(layer_norm, FLOATS),
    "decode_gemm": Family(decode_gemm, FLOATS, ("float16",)),
    "linear_gelu": Family(linear_gelu, GEMMS),
    "gemm_small": Family(partial(wide_gemm, m=136, k=72, n=264), GEMMS, ("float32", "tf32", "float16", "bfloat16")),
    "wide_gemm": Family(wide_gemm, GEMMS),
    "tall_gemm": Family(partial(wide_gemm, m=128, k=16384, n=136), GEMMS),
    "deep_gemm": Family(partial(wide_gemm, m=256, k=1024, n=512), ("float16",), ("float16",)),
    "tall_gemm_small": Family(partial(wide_gemm, m=64, k=2048, n=64), GEMMS, ("float32", "float16")),
    "large_gemm": Family(partial(wide_gemm, m=4100, k=1032, n=4104), GEMMS),
    "cluster_gemm": Family(partial(wide_gemm, m=2048, k=64, n=1024), ("float16", "bfloat16"), ("float16",)),
    "wide_cluster_gemm": Family(partial(wide_gemm, m=2048, k=64, n=2048), ("float16",), ("float16",)),
    "tickets": Family(mlp, TWO, sync="tile"),
    "tickets_small": Family(
        partial(mlp, rows=150, width=72, hidden=136), ("float32", "float16"), ("float32",), sync="tile"
    ),
    "launches": Family(mlp, ("float32",), sync="tile/launches"),
    "launches_by_copies": Family(
        partial(mlp, rows=264, width=264, hidden=1032), ("float16",), ("float16",), sync="tile/launches"
    ),
    "launches_small": Family(
        partial(mlp, rows=150, width=72, hidden=136), ("float32",), ("float32",), sync="tile/launches"
    ),
    "dense_norm": Family(dense_norm, FLOATS),
    "dense_norm_small": Family(partial(dense_norm, rows=40, width=128), ("float16",), ("float16",)),
    "dense_norm_wide": Family(partial(dense_norm, rows=512, width=1024), ("float16", "bfloat16")),
    "dense_norm_cluster": Family(partial(dense_norm, rows=2048, width=1024), ("float16",)),
    "dense_norm_apart": Family(dense_norm, TWO, passes=APART),
    "dense_norm_large": Family(partial(dense_norm, rows=4096), TWO),
    "dense_norm_large_apart": Family(partial(dense_norm, rows=4096), TWO, passes=APART),
    "gated": Family(gated, GEMMS, ("float16",)),
    "gated_large": Family(partial(gated, rows=300), GEMMS),
    "lstm": Family(lstm, ("float32",), ("float32",)),
    "attention": Family(attention, GEMMS),
    "attention_small": Family(partial(attention, heads=1, length=33), GEMMS, ("float32", "float16")),
    "causal_attention": Family(causal_attention, GEMMS),
    "causal_attention_small": Family(
        partial(causal_attention, queries=33, keys=64, width=32), GEMMS, ("float32", "bfloat16")
    ),
    "decode_attention": Family(decode_attention, FLOATS),
    "decode_attention_small": Family(partial(decode_attention, keys=1100), ("float16",), ("float16",)),
    "decode_attention_heads": Family(partial(decode_attention, keys=1030, kv_heads=8), TWO, ("float32",)),
    "conv_relu": Family(conv_relu, GEMMS, ("float32",)),
    "wide_conv": Family(wide_conv, GEMMS),
    "grouped_conv": Family(partial(conv_relu, groups=4), TWO, ("float32",)),
    "depthwise": Family(depthwise, FLOATS),
    "depthwise_wide": Family(partial(depthwise, side=7), FLOATS),
    "max_pool": Family(max_pool, TWO, ("float32",)),
    "running_sum": Family(running_sum, TWO, ("float32",)),
    "running_columns": Family(partial(running_sum, along=0), TWO, ("float32",)),
    "largest": Family(largest, ("float32",), ("float32",)),
    "largest_of_many": Family(partial(largest, rows=3, columns=6000), ("float32",), ("float32",)),
    "scattered": Family(scattered, ("float32",), ("float32",)),
    "added_up": Family(added_up, TWO, ("float32",)),
    "converted": Family(converted, TWO, ("float32",)),
    "signal": Family(signal, FLOATS, ("float32",)),
    "looked_up": Family(looked_up, ("int64",), ("int64",)),
    "integers": Family(integers, ("int8", "uint8")),
    "integers_small": Family(partial(integers, rows=40, width=96, hidden=72), ("int8", "uint8"), ("int8",)),
    "integers_wide": Family(partial(integers, rows=512, width=256, hidden=512), ("int8",)),
    "integers_few": Family(partial(integers, rows=2), ("int8",)),
    "integer_conv": Family(integer_conv, ("uint8",), ("uint8",)),
    "small_floats": Family(small_floats, SMALL),
    "small_floats_small": Family(partial(small_floats, rows=40, width=72), SMALL, SMALL),
    "small_floats_few": Family(partial(small_floats, rows=2), ("e4m3",), ("e4m3",)),
    "block_weights": Family(block_weights, GEMMS),
    "block_weights_small": Family(partial(block_weights, rows=40, width=72), GEMMS, ("float32", "float16")),
    "block_weights_few": Family(partial(block_weights, rows=3), FLOATS, ("float32", "float16")),
    "block_weights_bytes": Family(partial(block_weights, rows=1, codes="uint8"), TWO, ("float16",)),
    "block_weights_decode": Family(partial(block_weights, rows=1, depth=4096, width=4096), TWO),
    "linear_attention": Family(linear_attention, TWO, ("float32", "float16")),
    "linear_attention_chunks": Family(partial(linear_attention, tokens=70, heads=2), TWO, ("float32", "float16")),
    "turns": Family(turns, FLOATS, ("float32", "float16")),
    "outer_products": Family(outer_products, FLOATS, ("float32", "bfloat16")),
    "computed_matrices": Family(computed_matrices, FLOATS, ("float32", "float16")),
    "chosen_experts": Family(partial(chosen_experts, rows=40), TWO, ("float32", "float16")),
    "chosen_experts_few": Family(partial(chosen_experts, rows=3), TWO, ("float32", "float16")),
    "experts": Family(experts, FLOATS, ("float32", "bfloat16")),
    "quantised": Family(quantised, ("quantised",), ("quantised",)),
    "bert_2_layers": Family(partial(whole, bert), TWO, ("float32", "float16")),
    "bert_in_a_launch": Family(partial(whole, bert), TWO, sync="model"),
    "bert_in_queues": Family(partial(whole, bert), TWO, sync="model/queues"),
    "mlp_in_queues": Family(
        partial(mlp, rows=150, width=72, hidden=136), TWO, ("float32", "float16"), sync="model/queues"
    ),
    "gpt2_2_layers": Family(partial(whole, gpt2), TWO, ("float32",)),
    "bert_from_ptx": Family(partial(whole, bert), TWO, TWO, target="cuda:sm_80", image="ptx"),
    "residual_block": Family(partial(whole, residual_block), TWO, ("float32",)),
    "gru": Family(_network("gru"), TWO, ("float32",)),
    "gated_mlp": Family(_network("gated_mlp_decode"), TWO, ("float32",)),
    "gated_mlp_prefill": Family(_network("gated_mlp_prefill"), TWO),
    "group_norm": Family(_network("group_norm"), TWO, ("float32",)),
    "inception": Family(_network("inception"), TWO, ("float32",)),
    "mobile_block": Family(_network("mobile_block"), TWO, ("float32",)),
    "decoder": Family(_network("decoder"), TWO, ("float32",)),
    "sorting": Family(_network("sorting"), TWO, ("float32",)),
    "projections": Family(_network("projections"), TWO),
}
