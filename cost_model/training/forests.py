"""Trees grown by xgboost, as the arrays that predict."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.cost_model.library.trees import Forest


def forest_from_dump(dump: Sequence[Mapping[str, Any]], depth: int, outputs: int) -> Forest:
    """Return the trees in an xgboost JSON dump, with features named f0, f1, …; none may be deeper than `depth`."""
    inner = 2**depth - 1
    feature = np.zeros((len(dump), inner), np.intp)
    threshold = np.zeros((len(dump), inner), np.float32)
    leaf = np.zeros((len(dump), inner + 1))

    def place(tree: int, node: Mapping[str, Any], at: int) -> None:
        if at >= inner:
            leaf[tree, at - inner] = node["leaf"]
            return
        if "leaf" in node:
            place(tree, node, 2 * at + 1)
            place(tree, node, 2 * at + 2)
            return
        feature[tree, at], threshold[tree, at] = int(node["split"][1:]), node["split_condition"]
        children = {child["nodeid"]: child for child in node["children"]}
        place(tree, children[node["yes"]], 2 * at + 1)
        place(tree, children[node["no"]], 2 * at + 2)

    for number, tree in enumerate(dump):
        place(number, tree, 0)
    return Forest(feature, threshold, leaf, outputs)
