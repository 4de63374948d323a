"""Models that do not come from PyTorch: scikit-learn's, quantised ones, and graphs with structure of ONNX's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo import exporters, tabular
from benchmarks.zoo.sample import optional

Arrays = Mapping[str, np.ndarray]
Made = tuple[Any, Arrays]
"""A ModelProto, and its inputs."""

FEATURES, CLASSES = 12, 3


def random() -> np.random.Generator:
    return np.random.default_rng(0)


# --- scikit-learn -----------------------------------------------------------------------------------------------------


def fitted(path: str, target: str = "classes", **fields: Any) -> Callable[[], Made]:
    """An estimator of scikit-learn's, fitted to random data and converted by skl2onnx."""

    def make() -> Made:
        part, _, name = path.rpartition(".")
        rows = random().normal(size=(200, FEATURES)).astype(np.float32)
        wanted = (rows[:, 0] * 2 + rows[:, 1] > 0).astype(np.int64) + (rows[:, 2] > 1)
        estimator = getattr(optional(f"sklearn.{part}"), name)(**fields)
        estimator.fit(rows, wanted if target == "classes" else rows[:, 0] * rows[:, 1] - rows[:, 3])
        return converted(estimator), {"x": rows[:16]}

    return make


def converted(estimator: Any, maps: bool = False) -> Any:
    skl2onnx = optional("skl2onnx")
    kind = optional("skl2onnx.common.data_types").FloatTensorType([16, FEATURES])
    has_classes = optional("sklearn.base").is_classifier(estimator)
    options = {id(estimator): {"zipmap": maps}} if has_classes else None
    return skl2onnx.convert_sklearn(estimator, initial_types=[("x", kind)], options=options)


def with_maps() -> Made:
    """The output is a sequence of maps, as skl2onnx makes it unless told not to."""
    linear = optional("sklearn.linear_model").LogisticRegression()
    rows = random().normal(size=(100, FEATURES)).astype(np.float32)
    linear.fit(rows, (rows[:, 0] > 0).astype(np.int64))
    return converted(linear, maps=True), {"x": rows[:16]}


def pipeline() -> Made:
    sklearn = optional("sklearn.pipeline")
    preprocessing = optional("sklearn.preprocessing")
    steps = [preprocessing.StandardScaler(), optional("sklearn.decomposition").PCA(6)]
    steps += [preprocessing.PolynomialFeatures(2), optional("sklearn.linear_model").Ridge()]
    rows = random().normal(size=(200, FEATURES)).astype(np.float32)
    made = sklearn.make_pipeline(*steps).fit(rows, rows[:, 0] * rows[:, 1])
    return converted(made), {"x": rows[:16]}


def words() -> Made:
    """Texts, of which tokens are counted, and the classes of these."""
    text, types = optional("sklearn.feature_extraction.text"), optional("skl2onnx.common.data_types")
    texts = np.array(["a cat sat here", "dogs ran far away", "here ran a cat", "", "far cats, dogs"] * 6)
    steps = [text.TfidfVectorizer(lowercase=False), optional("sklearn.linear_model").LogisticRegression()]
    model = optional("sklearn.pipeline").make_pipeline(*steps).fit(texts, np.arange(len(texts)) % 2)
    options, kind = {id(model): {"zipmap": False}}, types.StringTensorType([5])
    return optional("skl2onnx").convert_sklearn(model, initial_types=[("x", kind)], options=options), {"x": texts[:5]}


def categories() -> Made:
    """Each of which has to be known, as it is unless scikit-learn is told not to mind."""
    kind = optional("skl2onnx.common.data_types").Int64TensorType([16, 3])
    x = random().integers(0, 5, (200, 3))
    model = optional("sklearn.preprocessing").OneHotEncoder(sparse_output=False).fit(x)
    return optional("skl2onnx").convert_sklearn(model, initial_types=[("x", kind)]), {"x": x[:16]}


# --- quantised --------------------------------------------------------------------------------------------------------


def float_model(kind: str) -> Made:
    """A small convolutional or transformer-like network in float32."""
    text = {
        "convolutions": """<ir_version: 8, opset_import: ["" : 17]>
            net (float[2,3,32,32] x) => (float[2,10] y) {
              a = Conv <strides = [2,2], pads = [1,1,1,1]> (x, w1, b1)
              r = Relu (a)
              d = Conv <group = 16, pads = [1,1,1,1]> (r, w2, b2)
              s = Clip (d, zero, six)
              p = Conv (s, w3, b3)
              q = Add (p, r)
              g = GlobalAveragePool (q)
              f = Flatten (g)
              y = Gemm <transB = 1> (f, w4, b4)
            }""",
        "products": """<ir_version: 8, opset_import: ["" : 17]>
            net (float[2,20,32] x) => (float[2,20,32] y) {
              q = MatMul (x, wq)
              k = MatMul (x, wk)
              t = Transpose <perm = [0,2,1]> (k)
              s = MatMul (q, t)
              p = Softmax <axis = -1> (s)
              m = MatMul (p, q)
              h = MatMul (m, wo)
              z = Add (h, x)
              n = LayerNormalization (z, scale, shift)
              u = MatMul (n, wu)
              e = Erf (u)
              y = MatMul (e, wd)
            }""",
    }[kind]  # fmt: skip
    onnx = optional("onnx")
    model = onnx.parser.parse_model(text)
    r = random()
    shapes: dict[str, tuple[int, ...]] = (
        {
            "w1": (16, 3, 3, 3),
            "b1": (16,),
            "w2": (16, 1, 3, 3),
            "b2": (16,),
            "w3": (16, 16, 1, 1),
            "b3": (16,),
            "w4": (10, 16),
            "b4": (10,),
        }
        if kind == "convolutions"
        else {
            "wq": (32, 32),
            "wk": (32, 32),
            "wo": (32, 32),
            "scale": (32,),
            "shift": (32,),
            "wu": (32, 64),
            "wd": (64, 32),
        }
    )
    arrays = {
        name: (r.normal(size=shape) / np.sqrt(np.prod(shape[1:]) + 1)).astype(np.float32)
        for name, shape in shapes.items()
    }
    arrays |= {"zero": np.float32(0), "six": np.float32(6)} if kind == "convolutions" else {}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()
    )
    shape = (2, 3, 32, 32) if kind == "convolutions" else (2, 20, 32)
    return model, {"x": r.normal(size=shape).astype(np.float32)}


def quantised(kind: str, how: str, **settings: Any) -> Callable[[], Made]:
    """By ONNX Runtime's tools: `qdq`, `operators` or `dynamic`."""

    def make() -> Made:
        import tempfile

        tools = optional("onnxruntime.quantization")
        onnx = optional("onnx")
        model, inputs = float_model(kind)

        class Reader(tools.CalibrationDataReader):  # type: ignore[name-defined]
            def __init__(self) -> None:
                self.left = [{"x": random().normal(size=inputs["x"].shape).astype(np.float32)} for _ in range(3)]

            def get_next(self) -> Any:
                return self.left.pop() if self.left else None

        with tempfile.TemporaryDirectory() as folder:
            source, target = f"{folder}/a.onnx", f"{folder}/b.onnx"
            onnx.save(model, source)
            if how == "dynamic":
                tools.quantize_dynamic(source, target, **settings)
            else:
                layout = tools.QuantFormat.QDQ if how == "qdq" else tools.QuantFormat.QOperator
                tools.quantize_static(source, target, Reader(), quant_format=layout, **settings)
            return onnx.load(target), inputs

    return make


def simplified() -> Made:
    """By onnx-simplifier, of a graph with shape arithmetic."""
    model, inputs = shape_arithmetic()
    small, ok = optional("onnxsim").simplify(model)
    assert ok
    return small, inputs


# --- structure --------------------------------------------------------------------------------------------------------


def parsed(text: str, **inputs: np.ndarray) -> Callable[[], Made]:
    return lambda: (optional("onnx").parser.parse_model(text), inputs)


def shape_arithmetic() -> Made:
    text = """<ir_version: 8, opset_import: ["" : 17]>
      net (float[2,6,8] x) => (float[a,b] y) {
        s = Shape (x)
        zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64[1] {1}> ()
        n = Gather (s, zero)
        rest = Constant <value = int64[1] {-1}> ()
        target = Concat <axis = 0> (n, rest)
        f = Reshape (x, target)
        y = Relu (f)
      }"""
    return optional("onnx").parser.parse_model(text), {"x": random().normal(size=(2, 6, 8)).astype(np.float32)}


HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
X = random().normal(size=(4, 6)).astype(np.float32)
MODELS: dict[str, Callable[[], Made]] = {
    **tabular.MODELS,
    **exporters.MODELS,
    **exporters.after(lambda: float_model("convolutions")),
    "sk_logistic": fitted("linear_model.LogisticRegression"),
    "sk_linear": fitted("linear_model.LinearRegression", "numbers"),
    "sk_mlp": fitted("neural_network.MLPClassifier", max_iter=5),
    "sk_forest": fitted("ensemble.RandomForestClassifier", n_estimators=5, max_depth=4),
    "sk_boosting": fitted("ensemble.GradientBoostingRegressor", "numbers", n_estimators=5),
    "sk_histogram": fitted("ensemble.HistGradientBoostingClassifier", max_iter=5),
    "sk_svm": fitted("svm.SVC", probability=False),
    "sk_svm_chances": fitted("svm.SVC", probability=True, random_state=0),
    "sk_words": words,
    "sk_categories": categories,
    "sk_neighbours": fitted("neighbors.KNeighborsClassifier"),
    "sk_kmeans": fitted("cluster.KMeans", n_clusters=4),
    "sk_bayes": fitted("naive_bayes.GaussianNB"),
    "sk_process": fitted("gaussian_process.GaussianProcessRegressor", "numbers"),
    "sk_pipeline": pipeline,
    "sk_maps": with_maps,
    "qdq_convolutions": quantised("convolutions", "qdq"),
    "qdq_channels": quantised("convolutions", "qdq", per_channel=True),
    "qdq_products": quantised("products", "qdq"),
    "qoperator_convolutions": quantised("convolutions", "operators"),
    "qoperator_products": quantised("products", "operators"),
    "dynamic_products": quantised("products", "dynamic"),
    "dynamic_convolutions": quantised("convolutions", "dynamic"),
    "simplified": simplified,
    "shape_arithmetic": shape_arithmetic,
    "loop_with_scan_output": parsed(
        f"""{HEAD} net (float[4,6] x, int64 n) => (float[4,6] y, float[k,4] trace) {{
          true = Constant <value = bool {{1}}> ()
          y, trace = Loop (n, true, x)
          <body = step (int64 i, bool c, float[4,6] s) => (bool c2, float[4,6] t, float[4] o) {{
            half = Constant <value = float {{0.5}}> ()
            h = Mul (s, half)
            t = Tanh (h)
            c2 = Identity (c)
            axes = Constant <value = int64[1] {{1}}> ()
            o = ReduceSum <keepdims = 0> (t, axes)
          }}> }}""",
        x=X, n=np.array(5),
    ),
    "nested_if": parsed(
        f"""{HEAD} net (float[4,6] x, bool c, bool d) => (float[4,6] y) {{
          y = If (c) <then_branch = a () => (float[4,6] p) {{
            p = If (d) <then_branch = aa () => (float[4,6] q) {{ q = Exp (x) }},
              else_branch = ab () => (float[4,6] r) {{ r = Neg (x) }}>
          }}, else_branch = b () => (float[4,6] s) {{ s = Softmax <axis = 1> (x) }}> }}""",
        x=X, c=np.array(True), d=np.array(False),
    ),
    "scan": parsed(
        f"""{HEAD} net (float[9,6] x, float[6] h) => (float[6] last, float[9,6] all) {{
          last, all = Scan <num_scan_inputs = 1, body = step (float[6] s, float[6] e) => (float[6] t, float[6] o) {{
            z = Add (s, e)
            t = Tanh (z)
            o = Mul (t, e)
          }}> (h, x) }}""",
        x=random().normal(size=(9, 6)).astype(np.float32), h=np.zeros(6, np.float32),
    ),
    "functions": parsed(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        net (float[4,6] x) => (float[4,6] y) { a = mine.gate <alpha = 0.3> (x)  y = mine.twice (a) }
        <domain: "mine", opset_import: ["" : 17]> gate <alpha> (x) => (y) {
          s = Sigmoid (x)  l = LeakyRelu <alpha: float = @alpha> (x)  y = Mul (s, l) }
        <domain: "mine", opset_import: ["" : 17, "mine" : 1]> twice (x) => (y) {
          a = mine.gate <alpha = 0.1> (x)  y = mine.gate <alpha = 0.2> (a) }""",
        x=X,
    ),
    "sequences": parsed(
        f"""{HEAD} net (float[4,6] x) => (float[a,6] y, seq(float[b,c]) parts) {{
          two = Constant <value = int64 {{2}}> ()
          parts = SplitToSequence <axis = 0> (x, two)
          y = ConcatFromSequence <axis = 0> (parts) }}""",
        x=X,
    ),
    "strings": parsed(
        """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        net (string[3] words) => (int64[3] ids) {
          ids = ai.onnx.ml.LabelEncoder
            <keys_strings = ["a", "b"], values_int64s = [1, 2], default_int64 = 9> (words) }""",
        words=np.array(["a", "b", "z"]),
    ),
    "foreign_domain": parsed(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[4,6] x) => (float[4,6] y) { y = com.microsoft.Inverse (x) }""",
        x=X,
    ),
    "unknown_operator": parsed(
        """<ir_version: 8, opset_import: ["" : 17, "acme.corp" : 1]>
        net (float[4,6] x) => (float[4,6] y) { y = acme.corp.Frobnicate (x) }""",
        x=X,
    ),
    "double": parsed(
        f"""{HEAD} net (double[4,6] x) => (double[4,4] y) {{
          t = Transpose (x)
          m = MatMul (x, t)
          y = Softmax <axis = 1> (m) }}""",
        x=X.astype(np.float64),
    ),
    "integers": parsed(
        f"""{HEAD} net (int32[4,6] x) => (int32[4,4] y, int32[4,6] z) {{
          axis = Constant <value = int64 {{1}}> ()
          t = Transpose (x)
          y = MatMul (x, t)
          z = CumSum (x, axis) }}""",
        x=(X * 50).astype(np.int32),
    ),
}  # fmt: skip


def write(name: str, folder: Path) -> None:
    """Writes the model and its inputs; one of them with its weights in another file."""
    onnx = optional("onnx")
    model, inputs = MODELS[name]()
    path = folder / f"{name}.onnx"
    onnx.save(model, path, save_as_external_data=name == "sk_mlp", location=f"{name}.data", size_threshold=64)
    arrays: dict[str, Any] = dict(inputs)
    np.savez(path.with_suffix(".npz"), **arrays)
