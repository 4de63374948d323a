"""Ensembles of decision trees: their tables, labels and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.types import to_numpy_dtype

from ..builder import dtype_of
from ..context import Context, Versioned
from .host_types import present, tensor_step
from .labels import class_labels, labelled
from .learning import floats, largest, transformed
from .tree_tables import LEAF, MEMBER, MODES, Trees
from .tree_walks import check_trees, scores_of


def _check_targets(ctx: Context, ids: Sequence[int], targets: int) -> None:
    odd = [number for number in ids if not 0 <= number < targets]
    if odd:
        raise ctx.fail(f"a leaf has a weight for target {odd[0]}, and there are {targets}; the model is wrong there")


# -- TreeEnsembleRegressor and TreeEnsembleClassifier -----------------------------------------------------------------


def _listed(ctx: Context, what: str, targets: int) -> Trees:
    """Return the trees of a node whose attributes list nodes by number and tree. `what`: prefix of its weights,
    `target` or `class`.
    """
    ids = list(zip(ctx.attr("nodes_treeids"), ctx.attr("nodes_nodeids"), strict=True))
    number = {one: place for place, one in enumerate(ids)}
    modes = np.array([_mode(ctx, mode) for mode in ctx.attr("nodes_modes")], np.int64)
    own = np.arange(len(ids))
    children = np.stack([own, own], 1)
    for side, name in enumerate(("nodes_falsenodeids", "nodes_truenodeids")):
        there = [number.get((tree, node), -1) for (tree, _), node in zip(ids, ctx.attr(name), strict=True)]
        children[:, side] = np.where(modes == LEAF, own, there)
    if (children < 0).any():
        raise ctx.fail(
            f"node {ids[int(np.argmax((children < 0).any(1)))][1]} of a tree leads to a node that is not there"
        )
    _check_targets(ctx, ctx.attr(f"{what}_ids"), targets)
    weights = np.zeros((len(ids), targets), np.float64)
    places = zip(ctx.attr(f"{what}_treeids"), ctx.attr(f"{what}_nodeids"), ctx.attr(f"{what}_ids"), strict=True)
    for (tree, node, target), weight in zip(places, _numbers(ctx, f"{what}_weights"), strict=True):
        if (tree, node) not in number:
            raise ctx.fail(f"a weight is of node {node} of tree {tree}, which is not there; the model is wrong there")
        weights[number[tree, node], target] += weight
    roots = {tree: number[tree, node] for tree, node in sorted(set(ids) - _led_to(ids, children), reverse=True)}
    missing = np.array(ctx.attr("nodes_missing_value_tracks_true", ()) or (0,) * len(ids), bool)
    features = np.where(modes == LEAF, 0, np.array(ctx.attr("nodes_featureids"), np.int64))
    return Trees(
        features, _numbers(ctx, "nodes_values"), modes, children, missing, weights, np.array([*roots.values()][::-1])
    )


def _led_to(ids: Sequence[tuple[int, int]], children: np.ndarray) -> set[tuple[int, int]]:
    own = np.arange(len(ids))
    return {ids[child] for side in (0, 1) for child in children[children[:, side] != own, side]}


def _mode(ctx: Context, name: str) -> int:
    if name == "LEAF":
        return LEAF
    if name not in MODES[:MEMBER]:
        raise ctx.fail(f"nodes_modes has {name!r}, none of {', '.join(MODES[:MEMBER])}, LEAF")
    return MODES.index(name)


def _numbers(ctx: Context, name: str, default: Sequence[float] | None = None) -> np.ndarray:
    """Return the numbers of a list attribute, or of its tensor form of operator set 3 for float64."""
    if ctx.has_attr(f"{name}_as_tensor"):
        return np.asarray(ctx.attr(f"{name}_as_tensor"), np.float64).reshape(-1)
    return np.array(ctx.attr(name) if default is None else ctx.attr(name, default), np.float64)


def convert_regressor(ctx: Context) -> Value:
    targets = ctx.attr("n_targets", max(ctx.attr("target_ids")) + 1)
    x = floats(ctx, ctx.input(0))
    scores = scores_of(ctx, x, _listed(ctx, "target", targets), ctx.attr("aggregate_function", "SUM"))
    scores = _with_base(ctx, scores, targets)
    return transformed(ctx, ctx.cast(scores, "float32"), ctx.attr("post_transform", "NONE"))


def _with_base(ctx: Context, scores: Value, targets: int) -> Value:
    base = _numbers(ctx, "base_values", ())
    if base.size not in (0, targets):
        raise ctx.fail(f"{base.size} base_values are given for {targets} targets")
    return ctx.add(scores, ctx.constant(base.astype(to_numpy_dtype(dtype_of(scores))))) if base.size else scores


def convert_classifier(ctx: Context) -> Sequence[Value]:
    labels, dtype = class_labels(ctx, ("classlabels_int64s", "classlabels_strings"))
    x, trees = floats(ctx, ctx.input(0)), _listed(ctx, "class", len(labels))
    how = ctx.attr("post_transform", "NONE")
    if len(labels) == 2 and len(set(ctx.attr("class_ids"))) == 1:
        return _of_two(ctx, x, trees, labels, dtype, how)
    scores = _with_base(ctx, scores_of(ctx, x, trees, "SUM"), len(labels))
    label = labelled(ctx, largest(ctx, scores), labels, dtype)
    return [label, transformed(ctx, ctx.cast(scores, "float32"), how)]


def _of_two(ctx: Context, x: Value, trees: Trees, labels: Sequence[Any], dtype: str, how: str) -> Sequence[Value]:
    """Convert a classifier all of whose weights belong to one of two classes, as ONNX Runtime does: they score the
    second, whatever its number.

    If all weights are positive they count as probabilities, and the first class has the rest of 1. Only LOGISTIC
    transforms them.
    """
    column = trees.weights[:, [ctx.attr("class_ids")[0]]]
    score = scores_of(ctx, x, replace(trees, weights=column), "SUM")
    base = _numbers(ctx, "base_values", ())
    if base.size not in (0, 1, 2):
        raise ctx.fail(f"{base.size} base_values are given for 2 classes")
    if base.size:
        score = ctx.add(score, float(base[ctx.attr("class_ids")[0] if base.size == 2 else 0]))
    is_share = bool((_numbers(ctx, "class_weights") >= 0).all())
    is_second = ctx.less(ctx.like(0.5 if is_share else 0.0, score), score)
    label = labelled(ctx, ctx.cast(ctx.reshape(is_second, (ctx.dim(x, 0),)), "int64"), labels, dtype)
    score = ctx.cast(score, "float32")
    if how == "LOGISTIC":
        return [label, transformed(ctx, ctx.concat([ctx.emit("neg", score), score], 1), how)]
    return [label, ctx.concat([ctx.sub(1.0, score) if is_share else ctx.emit("neg", score), score], 1)]


# -- TreeEnsemble -----------------------------------------------------------------------------------------------------

_LISTS = (
    "nodes_featureids",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "nodes_trueleafs",
    "nodes_falseleafs",
    "leaf_targetids",
    "tree_roots",
)
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def convert_tree_ensemble(ctx: Context) -> Value:
    x = ctx.input(0)
    lists = {name: np.array(ctx.attr(name), np.int64) for name in _LISTS}
    modes = ctx.attr("nodes_modes").reshape(-1).astype(np.int64)
    targets = ctx.attr("n_targets", int(lists["leaf_targetids"].max(initial=0)) + 1)
    aggregate = _AGGREGATES[ctx.attr("aggregate_function", 1)]
    transform = _TRANSFORMS[ctx.attr("post_transform", 0)]
    leaves = len(lists["leaf_targetids"])
    own = np.arange(len(modes), len(modes) + leaves)
    _check_targets(ctx, lists["leaf_targetids"].tolist(), targets)
    sides = [_children(ctx, lists, side, len(modes), leaves) for side in ("false", "true")]
    weights = np.zeros((len(modes) + leaves, targets))
    weights[own, lists["leaf_targetids"]] = ctx.attr("leaf_weights").reshape(-1)
    missing = np.array(ctx.attr("nodes_missing_value_tracks_true", ()) or (0,) * len(modes), bool)
    trees = Trees(
        np.pad(lists["nodes_featureids"], (0, leaves)),
        np.pad(ctx.attr("nodes_splits").reshape(-1).astype(np.float64), (0, leaves)),
        np.pad(modes, (0, leaves), constant_values=LEAF),
        np.stack([np.concatenate([side, own]) for side in sides], 1),
        np.pad(missing, (0, leaves)),
        weights,
        lists["tree_roots"],
    )
    # No kernels for: member sets, these transforms, and leaves without a value for a target of which the minimum is
    # taken.
    if MEMBER in modes or transform in ("PROBIT", "SOFTMAX_ZERO") or (aggregate in ("MIN", "MAX") and targets > 1):
        check_trees(ctx, x, trees)
        return _on_host(ctx, targets)
    return transformed(ctx, ctx.cast(scores_of(ctx, x, trees, aggregate), dtype_of(x)), transform)


def _children(ctx: Context, lists: Mapping[str, np.ndarray], side: str, nodes: int, leaves: int) -> np.ndarray:
    """Return the children that tests lead to, leaves numbered after all nodes. Refuses numbers out of range, which
    would address others.
    """
    numbers, is_leaf = lists[f"nodes_{side}nodeids"], lists[f"nodes_{side}leafs"] != 0
    if not len(numbers) == len(is_leaf) == nodes:
        raise ctx.fail(f"nodes_{side}nodeids and nodes_{side}leafs are to have a number for each of {nodes} nodes")
    odd = np.flatnonzero((numbers < 0) | (numbers >= np.where(is_leaf, leaves, nodes)))
    if odd.size:
        what, count = ("leaf", leaves) if is_leaf[odd[0]] else ("node", nodes)
        raise ctx.fail(f"a tree asks for {what} {numbers[odd[0]]}, and there are {count}; the model is wrong there")
    return numbers + nodes * is_leaf


def _on_host(ctx: Context, targets: int) -> Value:
    x = ctx.input(0)
    attrs: dict[str, Any] = {name: ctx.attr(name) for name in _LISTS}
    for name in ("nodes_splits", "nodes_modes", "leaf_weights"):
        attrs[name] = ctx.attr(name).reshape(-1).tolist()
    if ctx.has_attr("membership_values"):
        attrs["membership_values"] = ctx.attr("membership_values").reshape(-1).tolist()
    attrs |= present(ctx, "nodes_missing_value_tracks_true", "post_transform", "aggregate_function")
    type_ = TensorType(dtype_of(x), (x.tensor_type.shape[0], targets))
    return tensor_step(ctx, "TreeEnsemble", (x,), [type_], **attrs, n_targets=targets)[0]


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "TreeEnsemble": [(5, convert_tree_ensemble)],
    "TreeEnsembleClassifier": [(1, convert_classifier)],
    "TreeEnsembleRegressor": [(1, convert_regressor)],
}
