"""Boosted trees of xgboost and lightgbm, and pipelines over mixed columns, as onnxmltools and skl2onnx convert them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.zoo.sample import optional

FEATURES, ROWS = 12, 16
Made = tuple[Any, dict[str, np.ndarray]]


def table(rows: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, three classes and a number of each row."""
    x = np.random.default_rng(0).normal(size=(rows, FEATURES)).astype(np.float32)
    classes = (x[:, 0] * 2 + x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 1)
    return x, classes, x[:, 0] * x[:, 1] - x[:, 3]


def boosted(library: str, estimator: str, target: str, missing: bool = False, **fields: Any) -> Callable[[], Made]:
    """missing: some features are NaN."""

    def make() -> Made:
        tools = optional("onnxmltools")
        kind = optional("onnxmltools.convert.common.data_types").FloatTensorType([ROWS, FEATURES])
        x, classes, numbers = table()
        if missing:
            x[np.random.default_rng(1).random(x.shape) < 0.1] = np.nan
        wanted = {"classes": classes, "two": np.minimum(classes, 1), "numbers": numbers, "counts": np.abs(numbers)}
        model = getattr(optional(library), estimator)(**fields).fit(x, wanted[target])
        convert = getattr(tools, f"convert_{library}")
        plain = {"zipmap": False} if library == "lightgbm" else {}
        return convert(model, initial_types=[("x", kind)], target_opset=15, **plain), {"x": x[:ROWS]}

    return make


def converted(estimator: Callable[[], Any], target: str = "classes") -> Callable[[], Made]:
    """Of scikit-learn."""

    def make() -> Made:
        kind = optional("skl2onnx.common.data_types").FloatTensorType([ROWS, FEATURES])
        x, classes, numbers = table()
        model = estimator().fit(x, {"classes": classes, "numbers": numbers}[target])
        options = {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
        found = optional("skl2onnx").convert_sklearn(model, initial_types=[("x", kind)], options=options)
        return found, {"x": x[:ROWS]}

    return make


def mixed() -> Made:
    """Numbers, with some missing, and words, each with its own steps, before a forest."""
    types = optional("skl2onnx.common.data_types")
    pipeline, compose = optional("sklearn.pipeline"), optional("sklearn.compose")
    steps, impute = optional("sklearn.preprocessing"), optional("sklearn.impute")
    frame = optional("pandas").DataFrame
    x, classes, _ = table()
    x[::7, 0] = np.nan
    words = np.random.default_rng(2).choice(["red", "green", "blue"], size=len(x)).astype(object)
    numbers = pipeline.make_pipeline(impute.SimpleImputer(), steps.StandardScaler())
    columns = compose.ColumnTransformer(
        [("numbers", numbers, ["a", "b"]), ("words", steps.OneHotEncoder(handle_unknown="ignore"), ["colour"])]
    )
    model = pipeline.make_pipeline(columns, optional("sklearn.ensemble").RandomForestClassifier(5, max_depth=4))
    model.fit(frame({"a": x[:, 0], "b": x[:, 1], "colour": words}), classes)
    kinds = [("a", types.FloatTensorType([ROWS, 1])), ("b", types.FloatTensorType([ROWS, 1]))]
    kinds.append(("colour", types.StringTensorType([ROWS, 1])))
    found = optional("skl2onnx").convert_sklearn(model, initial_types=kinds, options={id(model): {"zipmap": False}})
    some = words[:ROWS, None].astype(np.str_)
    return found, {"a": x[:ROWS, :1], "b": x[:ROWS, 1:2], "colour": some}


def of(path: str, **fields: Any) -> Callable[[], Any]:
    part, _, name = path.rpartition(".")
    return lambda: getattr(optional(f"sklearn.{part}"), name)(**fields)


def stacked() -> Any:
    parts = [
        ("trees", of("tree.DecisionTreeClassifier", max_depth=4)()),
        ("line", of("linear_model.LogisticRegression")()),
    ]
    return optional("sklearn.ensemble").StackingClassifier(parts)


MODELS: dict[str, Callable[[], Made]] = {
    "xgb_classes": boosted("xgboost", "XGBClassifier", "classes", n_estimators=20, max_depth=4),
    "xgb_two": boosted("xgboost", "XGBClassifier", "two", True, n_estimators=50, max_depth=6),
    "xgb_numbers": boosted("xgboost", "XGBRegressor", "numbers", True, n_estimators=100, max_depth=6),
    "xgb_counts": boosted("xgboost", "XGBRegressor", "counts", n_estimators=10, objective="count:poisson"),
    "xgb_forest": boosted("xgboost", "XGBRFClassifier", "two", n_estimators=10),
    "lgbm_classes": boosted("lightgbm", "LGBMClassifier", "classes", n_estimators=20, verbose=-1),
    "lgbm_two": boosted("lightgbm", "LGBMClassifier", "two", True, n_estimators=50, verbose=-1),
    "lgbm_numbers": boosted("lightgbm", "LGBMRegressor", "numbers", True, n_estimators=100, verbose=-1),
    "sk_mixed": mixed,
    "sk_extra_trees": converted(of("ensemble.ExtraTreesClassifier", n_estimators=50, max_depth=8)),
    "sk_ada_boost": converted(of("ensemble.AdaBoostClassifier", n_estimators=10)),
    "sk_bagging": converted(of("ensemble.BaggingClassifier", n_estimators=5)),
    "sk_stacked": converted(stacked),
    "sk_knn_numbers": converted(of("neighbors.KNeighborsRegressor"), "numbers"),
    "sk_lasso": converted(of("linear_model.LassoLars"), "numbers"),
    "sk_huber": converted(of("linear_model.HuberRegressor"), "numbers"),
    "sk_bayesian_ridge": converted(of("linear_model.BayesianRidge"), "numbers"),
    "sk_lda": converted(of("discriminant_analysis.LinearDiscriminantAnalysis")),
    "sk_qda": converted(of("discriminant_analysis.QuadraticDiscriminantAnalysis")),
    "sk_pls": converted(of("cross_decomposition.PLSRegression"), "numbers"),
    "sk_power": converted(of("preprocessing.PowerTransformer")),
    "sk_robust_scaler": converted(of("preprocessing.RobustScaler")),
    "sk_kernel_pca": converted(of("decomposition.KernelPCA", n_components=3, kernel="rbf")),
    "sk_svr": converted(of("svm.SVR"), "numbers"),
    "sk_linear_svc": converted(of("svm.LinearSVC")),
    "sk_one_vs_rest": converted(
        of("multiclass.OneVsRestClassifier", estimator=of("linear_model.LogisticRegression")())
    ),
}
