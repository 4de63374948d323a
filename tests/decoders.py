"""A decoder in the form in which exporters of language models for ONNX Runtime write it, of small widths."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.models import Builder

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
MICROSOFT = "com.microsoft"
VOCABULARY, HIDDEN, HEADS, KV_HEADS, DEPTH, INNER, LAYERS, BLOCK, LONGEST = 40, 64, 4, 2, 16, 96, 2, 32, 32


class DecoderBuilder(Builder):
    """Nodes of com.microsoft, and weights of 4 bits in blocks."""

    def own(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        made: str | list[str] = self.op(op_type, *inputs, outputs=outputs, **attributes)
        self.nodes[-1].domain = MICROSOFT
        return [made] if isinstance(made, str) else made

    def integers(self, *shape: int) -> str:
        return self.constant(self.random.integers(0, 256, shape).astype(np.uint8))

    def scales(self, *shape: int) -> str:
        return self.constant(self.random.uniform(0.01, 0.04, shape).astype(np.float32))

    def linear(self, x: str, depth: int, width: int) -> str:
        blocks = -(-depth // BLOCK)
        operands = (
            self.integers(width, blocks, BLOCK // 2),
            self.scales(width, blocks),
            self.integers(width, -(-blocks // 2)),
        )
        return self.own("MatMulNBits", x, *operands, K=depth, N=width, bits=4, block_size=BLOCK)[0]


def decoder(rows: int, past: int, batch: int = 1, room: int = 0) -> ModelProto:
    """`rows` new tokens after `past` ones; caches have room for `room` tokens, or for those of the past alone.

    Inputs `ids` int64 [batch, rows], `keep` int64 [batch, past + rows], and the caches of keys and values of each
    layer; outputs `logits` and the caches after the step.
    """
    b = DecoderBuilder(0)
    room = room or past
    total = past + rows
    one, axes = b.constant(np.array(1, np.int64)), b.constant(np.array([1], np.int64))
    lengths = b.op("Cast", b.op("Sub", b.op("ReduceSum", "keep", axes, keepdims=0), one), to=TensorProto.INT32)
    longest = b.op("Cast", b.op("Gather", b.op("Shape", "keep"), one), to=TensorProto.INT32)
    angles = np.arange(LONGEST)[:, None] / 100.0 ** (np.arange(DEPTH // 2) / (DEPTH // 2))
    cos, sin = b.constant(np.cos(angles).astype(np.float32)), b.constant(np.sin(angles).astype(np.float32))
    table = b.integers(VOCABULARY, HIDDEN // 2), "ids", b.scales(VOCABULARY, HIDDEN // BLOCK)
    x = b.own("GatherBlockQuantized", *table, bits=4, block_size=BLOCK, gather_axis=0, quantize_axis=1)[0]
    normal = b.op("SimplifiedLayerNormalization", x, b.around_one(HIDDEN), epsilon=1e-5, axis=-1, stash_type=1)
    inputs = [
        helper.make_tensor_value_info("ids", INT, [batch, rows]),
        helper.make_tensor_value_info("keep", INT, [batch, total]),
    ]
    outputs = [helper.make_tensor_value_info("logits", FLOAT, [batch, rows, VOCABULARY])]
    for layer in range(LAYERS):
        packed = b.linear(normal, HIDDEN, (HEADS + 2 * KV_HEADS) * DEPTH)
        before, after = ([f"{side}_{name}_{layer}" for name in ("key", "value")] for side in ("past", "present"))
        attended = b.own(
            "GroupQueryAttention", packed, "", "", *before, lengths, longest, cos, sin, outputs=3,
            num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1,
        )  # fmt: skip
        b.nodes[-1].output[1:] = after
        inputs += [helper.make_tensor_value_info(n, FLOAT, [batch, KV_HEADS, room, DEPTH]) for n in before]
        outputs += [helper.make_tensor_value_info(n, FLOAT, [batch, KV_HEADS, max(room, total), DEPTH]) for n in after]
        normal, x = _residual(b, x, b.linear(attended[0], HEADS * DEPTH, HIDDEN))
        gate, up = b.linear(normal, HIDDEN, INNER), b.linear(normal, HIDDEN, INNER)
        active = b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), up)
        normal, x = _residual(b, x, b.linear(active, INNER, HIDDEN))
    b.nodes.append(helper.make_node("Identity", [b.linear(normal, HIDDEN, VOCABULARY)], ["logits"]))
    graph = helper.make_graph(b.nodes, "decoder", inputs, outputs, b.weights)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _residual(b: DecoderBuilder, x: str, y: str) -> tuple[str, str]:
    """The normalised sum, and the sum."""
    made = b.own("SkipSimplifiedLayerNormalization", x, y, b.around_one(HIDDEN), outputs=4, epsilon=1e-5)
    b.nodes[-1].output[1:3] = ["", ""]
    return made[0], made[3]
