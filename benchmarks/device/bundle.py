"""Compiles what a machine with a GPU shall run: small cases with their weights, and models without.

    python -m benchmarks.device.bundle --out benchmarks/device/bundle [--only softmax,bert_base] [--limit-mib 64]

Cases are right or wrong, so that they carry their graph with its constants. Models are only fast or slow: their weights
are made from a seed where they run. `bundle.json` lists the entries; what the same compiler has made is not made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.models import MODELS, export
from tests.networks import bert, gpt2, half, residual_block
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir.text import constants_of, digest, print_graph

TARGET = "cuda:sm_90a"
SEED = 20261
KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
LISTING = "bundle.json"
PRECISIONS = ("fp32", "tf32", "bf16")


def _model(
    nodes: list[Any], inputs: dict[str, tuple[int, ...]], output: tuple[int, ...], dtype: str, opset: int = 20,
    **weights: Any,
) -> onnx.ModelProto:  # fmt: skip
    kind = KINDS[dtype]
    rng = np.random.default_rng(SEED)
    made = [
        numpy_helper.from_array((rng.standard_normal(shape) / max(shape[0], 1) ** 0.5).astype(dtype), name)
        for name, shape in weights.items()
    ]
    graph = helper.make_graph(
        nodes, "case",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", kind, output)], made,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    onnx.checker.check_model(model)
    return model


def _scalar(number: float, dtype: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(number, dtype))


def softmax(dtype: str, rows: int = 999, columns: int = 1000) -> onnx.ModelProto:
    shape = (rows, columns)
    return _model([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": shape}, shape, dtype)


def layer_norm(dtype: str, rows: int = 513, columns: int = 768) -> onnx.ModelProto:
    shape = (rows, columns)
    nodes = [
        helper.make_node("Add", ["x", "r"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "g", "b"], ["y"], axis=-1),
    ]
    return _model(nodes, {"x": shape, "r": shape}, shape, dtype, g=(columns,), b=(columns,))


def linear_gelu(dtype: str, rows: int = 130, width: int = 384, hidden: int = 520) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Gelu", ["s"], ["y"]),
    ]
    return _model(nodes, {"x": (rows, width)}, (rows, hidden), dtype, w=(width, hidden), b=(hidden,))


def dense_norm(dtype: str, rows: int = 128, width: int = 512) -> onnx.ModelProto:
    """What follows attention in a transformer: projection, bias, residual, LayerNorm."""
    shape = (rows, width)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Add", ["s", "r"], ["t"]),
        helper.make_node("LayerNormalization", ["t", "g", "h"], ["y"], axis=-1),
    ]
    column = (width,)
    return _model(nodes, {"x": shape, "r": shape}, shape, dtype, w=(width, width), b=column, g=column, h=column)


def decode_product(dtype: str) -> onnx.ModelProto:
    return linear_gelu(dtype, 1, 512, 1000)


def attention(dtype: str, heads: int = 4, length: int = 129, width: int = 64) -> onnx.ModelProto:
    shape = (2, heads, length, width)
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["c"]),
        helper.make_node("Softmax", ["c"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["scale"], value=_scalar(width**-0.5, dtype)))
    return _model(nodes, {"q": shape, "k": shape, "v": shape}, shape, dtype)


def wide_product(dtype: str) -> onnx.ModelProto:
    return linear_gelu(dtype, 1032, 512, 2056)


def wide_conv(dtype: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return _model(nodes, {"x": (2, 128, 57, 55)}, (2, 192, 29, 28), dtype, w=(192, 128, 3, 3), b=(192,))


def causal_attention(
    dtype: str, heads: int = 6, kv_heads: int = 2, queries: int = 200, keys: int = 333, width: int = 128
) -> onnx.ModelProto:
    """Query heads that share keys; each query sees the keys up to its own position, counted from the first key."""
    shape, cache = (1, heads, queries, width), (1, kv_heads, keys, width)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    return _model([node], {"q": shape, "k": cache, "v": cache}, shape, dtype, 23)


def decode_attention(
    dtype: str, heads: int = 8, kv_heads: int = 2, keys: int = 2050, width: int = 64
) -> onnx.ModelProto:
    """One query a head against a long cache: the keys are cut into parts."""
    shape, cache = (1, heads, 1, width), (1, kv_heads, keys, width)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    return _model([node], {"q": shape, "k": cache, "v": cache}, shape, dtype, 23)


def conv_relu(dtype: str, groups: int = 1) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], group=groups),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return _model(nodes, {"x": (2, 32, 29, 31)}, (2, 64, 15, 16), dtype, w=(64, 32 // groups, 3, 3), b=(64,))


def turned(dtype: str) -> onnx.ModelProto:
    """A transpose through shared memory, with tiles that are not full."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])
    return _model([node], {"x": (3, 517, 333)}, (3, 333, 517), dtype)


def max_pool(dtype: str) -> onnx.ModelProto:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return _model([node], {"x": (2, 16, 33, 35)}, (2, 16, 17, 18), dtype)


def whole(network: Callable[[], onnx.ModelProto], dtype: str) -> onnx.ModelProto:
    """A small network of many kernels."""
    return half(network()) if dtype == "float16" else network()


CASES: dict[str, Callable[[str], onnx.ModelProto]] = {
    "softmax": softmax,
    "layer_norm": layer_norm,
    "linear_gelu": linear_gelu,
    "wide_product": wide_product,
    "decode_product": decode_product,
    "dense_norm": dense_norm,
    "dense_norm_apart": dense_norm,
    "dense_norm_large": partial(dense_norm, rows=4096),
    "dense_norm_large_apart": partial(dense_norm, rows=4096),
    "attention": attention,
    "causal_attention": causal_attention,
    "decode_attention": decode_attention,
    "conv_relu": conv_relu,
    "wide_conv": wide_conv,
    "grouped_conv": lambda dtype: conv_relu(dtype, 4),
    "max_pool": max_pool,
    "turned": turned,
    "bert_2_layers": partial(whole, bert),
    "gpt2_2_layers": partial(whole, gpt2),
    "residual_block": partial(whole, residual_block),
}
SOURCES = ("compiler", "passes", "codegen", "cost_model", "runtime")
APART = "benchmarks.device.apart:NoBands"
"""For cases called so: the rows behind a product in a launch of their own."""


def bundle_case(name: str, dtype: str, folder: Path) -> dict[str, Any]:
    """Artifact with the CUDA text, for the emulated device; graph; and the constants that the artifact lacks."""
    passes = (APART,) if name.endswith("_apart") else ()
    compiled = compile_model(CASES[name](dtype), target=TARGET, passes=passes, keep_source=True)
    entry = f"{name}.{dtype}"
    compiled.save(folder / f"{entry}.tsm")
    graph = compiled.specialisations[0].graph
    (folder / f"{entry}.graph").write_text(print_graph(graph))
    stored = {digest(array) for array in compiled.contents.weights.values()}
    rest: dict[str, Any] = {key: data for key, data in constants_of(graph).items() if key not in stored}
    np.savez(folder / f"{entry}.npz", **rest)
    return {"name": entry, "kind": "case", "dtype": dtype}


def bundle_model(name: str, precision: str, folder: Path) -> dict[str, Any]:
    """Artifact and graph without constants; which there are, by digest."""
    compiled = compile_model(export(name), target=TARGET, precision=precision, strip_weights=True)
    entry = f"{name}.{precision}"
    compiled.save(folder / f"{entry}.tsm")
    (folder / f"{entry}.tsm.weights.safetensors").unlink()
    graph = compiled.specialisations[0].graph
    (folder / f"{entry}.graph").write_text(print_graph(graph))
    constants = {digest: [data.dtype.name, list(data.shape)] for digest, data in constants_of(graph).items()}
    return {"name": entry, "kind": "model", "model": name, "precision": precision, "constants": constants}


def entries(only: list[str] | None) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """What to bundle, by name; `only` names cases (in all data types) and models (in all precisions)."""
    found: dict[str, Callable[[Path], dict[str, Any]]] = {}
    for name in CASES:
        for dtype in KINDS:
            found[f"{name}.{dtype}"] = partial(bundle_case, name, dtype)
    for precision in PRECISIONS:
        for name in MODELS:
            found[f"{name}.{precision}"] = partial(bundle_model, name, precision)
    return {name: make for name, make in found.items() if not only or name in only or name.split(".")[0] in only}


def made_by() -> str:
    """A digest of the text of the compiler, the runtime and this file."""
    root, found = Path(__file__).parents[2], hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted(f for name in SOURCES for f in (root / name).rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.bundle", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "bundle", metavar="FOLDER")
    parser.add_argument("--only", metavar="NAME,NAME", help="these cases and models")
    parser.add_argument("--limit-mib", type=float, default=64.0, help="of the whole folder (default 64)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    listing = options.out / LISTING
    done: list[dict[str, Any]] = json.loads(listing.read_text()) if listing.exists() else []
    compiler, failed = made_by(), 0
    done = [entry for entry in done if entry.get("compiler") == compiler]
    for name, make in entries(options.only.split(",") if options.only else None).items():
        if any(entry["name"] == name for entry in done):
            continue
        print(name, file=sys.stderr, flush=True)
        try:
            done.append({**make(options.out), "compiler": compiler})
        except Exception as error:  # noqa: BLE001 - one entry that cannot be compiled must not cost the others
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed += 1
        listing.write_text(json.dumps(done, indent=1))
    size = sum(path.stat().st_size for path in options.out.iterdir()) / 2**20
    print(f"{len(done)} entries, {size:.1f} MiB, {failed} failed", file=sys.stderr)
    return int(failed > 0 or size > options.limit_mib)


if __name__ == "__main__":
    sys.exit(main())
