"""Models as other exporters write them: keras (through TensorFlow, if that is its backend), jax2onnx, catboost, and
tools that change what was exported: float16, onnxslim.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.sample import optional

Made = tuple[Any, Mapping[str, np.ndarray]]


def random() -> np.random.Generator:
    return np.random.default_rng(0)


# --- keras ------------------------------------------------------------------------------------------------------------


def keras(shape: tuple[int, ...], body: Callable[[Any, Any], Any]) -> Callable[[], Made]:
    """`body` makes the output of an input [batch, *shape] with the layers of keras; the batch stays open."""

    def make() -> Made:
        library, onnx = optional("keras"), optional("onnx")
        library.utils.set_random_seed(0)
        given = library.Input(shape)
        model = library.Model(given, body(library.layers, given))
        x = random().normal(size=(2, *shape)).astype(np.float32)
        model(x)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            model.export(str(path), format="onnx", verbose=False)
            made = onnx.load(path)
        return made, {made.graph.input[0].name: x}

    return make


def encoder(layers: Any, x: Any) -> Any:
    y = layers.MultiHeadAttention(4, 8)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(x + y)
    return layers.LayerNormalization()(x + layers.Dense(32)(layers.Dense(64, activation="relu")(x)))


def separable(layers: Any, x: Any) -> Any:
    y = layers.SeparableConv2D(8, 3, strides=2, padding="same", depth_multiplier=2)(x)
    y = layers.PReLU()(layers.DepthwiseConv2D(5, padding="same", dilation_rate=2)(y))
    return layers.BatchNormalization()(y)


def transposed(layers: Any, x: Any) -> Any:
    y = layers.MaxPooling2D()(layers.Conv2D(8, 3, padding="same", activation="relu")(x))
    y = layers.Conv2DTranspose(8, 3, strides=2, padding="same")(y)
    return layers.UpSampling2D(2, interpolation="bilinear")(layers.Concatenate()([x, y]))


def images(layers: Any, x: Any) -> Any:
    y = layers.CenterCrop(24, 24)(layers.Resizing(31, 33)(layers.Rescaling(1 / 127.5, -1)(x)))
    return layers.Resizing(10, 11, interpolation="nearest")(y)


def both_ways(layers: Any, x: Any) -> Any:
    y = layers.Bidirectional(layers.GRU(16, return_sequences=True), merge_mode="sum")(x)
    return layers.Bidirectional(layers.LSTM(8), merge_mode="ave")(y)


# --- jax, catboost ----------------------------------------------------------------------------------------------------


def jax(function: Callable[[Any, Any, Any], Any]) -> Callable[[], Made]:
    """`function` of jax, its numpy and x [4, 16]."""

    def make() -> Made:
        library, numpy = optional("jax"), optional("jax.numpy")
        x = random().normal(size=(4, 16)).astype(np.float32)
        made = optional("jax2onnx").to_onnx(lambda x: function(library, numpy, x), [x.shape])
        return made, {made.graph.input[0].name: x}

    return make


def mixing(library: Any, numpy: Any, x: Any) -> Any:
    weights = numpy.asarray(random().normal(size=(16, 16)).astype(np.float32))
    scores = library.nn.softmax(numpy.einsum("ij,kj->ik", x @ weights, x), axis=-1)
    return library.nn.gelu(scores @ x) + numpy.cumsum(x, axis=1)


def recurrence(library: Any, numpy: Any, x: Any) -> Any:
    def step(state: Any, row: Any) -> Any:
        state = numpy.tanh(0.5 * state + row)
        return state, state * row

    return library.lax.scan(step, numpy.zeros(16, numpy.float32), x)[1]


def catboost(estimator: str) -> Callable[[], Made]:
    def make() -> Made:
        library, onnx = optional("catboost"), optional("onnx")
        x = random().normal(size=(300, 12)).astype(np.float32)
        wanted = x[:, 0] * x[:, 1] - x[:, 3]
        model = getattr(library, estimator)(iterations=20, depth=4, verbose=False, allow_writing_files=False)
        model.fit(x, wanted if "Regressor" in estimator else (wanted > 0).astype(int))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            model.save_model(str(path), format="onnx")
            return onnx.load(path), {"features": x[:16]}

    return make


# --- tools ------------------------------------------------------------------------------------------------------------


def halved(source: Callable[[], Made], **settings: Any) -> Callable[[], Made]:
    """In float16 by onnxconverter-common."""

    def make() -> Made:
        model, inputs = source()
        return optional("onnxconverter_common.float16").convert_float_to_float16(model, **settings), inputs

    return make


def slim(source: Callable[[], Made]) -> Callable[[], Made]:
    def make() -> Made:
        model, inputs = source()
        return optional("onnxslim").slim(model), inputs

    return make


def after(convolutions: Callable[[], Made]) -> dict[str, Callable[[], Made]]:
    """What tools make of a network."""
    return {
        "half_convolutions": halved(convolutions, keep_io_types=True),
        "slim_convolutions": slim(convolutions),
    }


MODELS: dict[str, Callable[[], Made]] = {
    "keras_encoder": keras((10, 32), encoder),
    "keras_separable": keras((17, 15, 3), separable),
    "keras_transposed": keras((24, 20, 3), transposed),
    "keras_images": keras((20, 18, 3), images),
    "keras_both_ways": keras((9, 6), both_ways),
    "keras_conv_lstm": keras((4, 12, 12, 3), lambda layers, x: layers.ConvLSTM2D(5, 3, padding="same")(x)),
    "jax_mixing": jax(mixing),
    "jax_recurrence": jax(recurrence),
    "catboost_numbers": catboost("CatBoostRegressor"),
    "catboost_classes": catboost("CatBoostClassifier"),
}
