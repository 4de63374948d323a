"""Ensembles of trees against ONNX Runtime, one thread: `python -m benchmarks.trees [--write NAME]`.

Trees are random, of the shapes that libraries grow: to one depth (XGBoost), leaf by leaf (LightGBM), and to leaves of
single rows (scikit-learn's forests). Rows are random and all different: rows that repeat let the processor foresee the
branches that ONNX Runtime takes. Time is that of the thread, in turns, the least eighth of the turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from benchmarks.turns import cpu_microseconds, markdown, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.runtime import load

FEATURES = 30
ROWS = (1, 16, 100, 1000, 10000)
TREES: Mapping[str, tuple[int, Callable[[np.random.Generator], Iterator[int]], bool]] = {
    "300 trees of depth 6": (300, lambda rng: iter(range(63)), True),
    "500 trees of 31 leaves": (500, lambda rng: _leaf_by_leaf(rng, 31), False),
    "100 trees of 500 leaves": (100, lambda rng: _leaf_by_leaf(rng, 500), False),
    "200 trees of depth 3": (200, lambda rng: iter(range(7)), False),
}
"""How many, the nodes of one that are split, in order, and whether NaN passes some tests."""


def _leaf_by_leaf(rng: np.random.Generator, leaves: int) -> Iterator[int]:
    """Any leaf is split next; those that are made are numbered on."""
    open_, count = [0], 1
    for _ in range(leaves - 1):
        yield open_.pop(int(rng.integers(len(open_))))
        open_ += [count, count + 1]
        count += 2


def ensemble(name: str) -> ModelProto:
    count, grow, missing = TREES[name]
    rng = np.random.default_rng(0)
    nodes: dict[str, list[Any]] = {
        f"nodes_{part}": []
        for part in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    tracks: list[int] = []
    for tree in range(count):
        first_child = {node: 2 * place + 1 for place, node in enumerate(grow(rng))}
        for node in range(2 * len(first_child) + 1):
            child = first_child.get(node)
            sides = (0, 0) if child is None else (child, child + 1)
            mode = "LEAF" if child is None else "BRANCH_LEQ"
            row = (tree, node, int(rng.integers(FEATURES)), float(rng.normal() * 0.7), mode, *sides)
            for values, value in zip(nodes.values(), row, strict=True):
                values.append(value)
            tracks.append(int(missing and child is not None and rng.random() < 0.5))
    leaves = [place for place, mode in enumerate(nodes["nodes_modes"]) if mode == "LEAF"]
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **nodes,
        nodes_missing_value_tracks_true=tracks, target_ids=[0] * len(leaves),
        target_treeids=[nodes["nodes_treeids"][place] for place in leaves],
        target_nodeids=[nodes["nodes_nodeids"][place] for place in leaves],
        target_weights=rng.normal(size=len(leaves)).astype(np.float32).tolist(),
    )  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", size]) for n, size in (("x", FEATURES), ("y", 1)))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "trees", [x], [y]), opset_imports=opsets, ir_version=8)


def measure(name: str) -> Iterator[dict[str, Any]]:
    """With the number of rows given, and (`open`) with one artifact for any number."""
    model = ensemble(name)
    theirs = onnxruntime_session(model, 1)
    open_rows = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    for rows in ROWS:
        x = np.random.default_rng(1).normal(size=(rows, FEATURES)).astype(np.float32)
        given = load(compile_model(model, shapes={"x": x.shape}, num_threads=1).to_bytes(), num_threads=1)
        feeds = {"x": x}
        (expected,) = theirs.run(None, feeds)
        for module in (given, open_rows):
            np.testing.assert_allclose(module.run(feeds)["y"], expected, rtol=1e-4, atol=1e-4)
        ways: dict[str, Callable[[], object]] = {
            "given": partial(given.run, feeds), "open": partial(open_rows.run, feeds),
            "onnxruntime": partial(theirs.run, None, feeds),
        }  # fmt: skip
        times = cpu_microseconds(ways, 40 if rows >= 1000 else 200)
        yield {"trees": name, "rows": rows, **{f"{way}_us": round(value, 1) for way, value in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="NAME", help="write benchmarks/results/NAME.json")
    arguments = parser.parse_args()
    results = [result for name in TREES for result in measure(name)]
    rows = [
        (r["trees"], r["rows"], r["given_us"], r["open_us"], r["onnxruntime_us"],
         round(r["onnxruntime_us"] / r["given_us"], 2), round(r["onnxruntime_us"] / r["open_us"], 2))
        for r in results
    ]  # fmt: skip
    print(markdown(("trees", "rows", "us", "us, rows open", "ONNX Runtime us", "ratio", "ratio, rows open"), rows))
    if arguments.write:
        write_results(arguments.write, results)


if __name__ == "__main__":
    main()
