"""Models as people export, convert and quantise them: compiled, run, and checked with the rule that fits each."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.models import in_half
from tilestitch.compiler.cli import errors, main

pytest.importorskip("onnxruntime")
IDS = np.random.default_rng(0).integers(0, 100, (1, 16))
PIXELS = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def torch() -> Any:
    pytest.importorskip("onnxscript")
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def exported(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small encoder and a small CNN, by both of PyTorch's exporters."""
    nn = torch.nn
    torch.manual_seed(0)

    class Encoder(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 64)
            layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(64, 10)

        def forward(self, ids: Any) -> Any:
            return self.head(self.layers(self.words(ids)))

    cnn = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Hardswish(),
        nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("exported")
    made = {}
    for name, module, example in (("encoder", Encoder(), torch.tensor(IDS)), ("cnn", cnn, torch.tensor(PIXELS))):
        for exporter in ("dynamo", "script"):
            path = made[f"{name}.{exporter}"] = folder / f"{name}.{exporter}.onnx"
            options: dict[str, Any] = (
                {"dynamo": True} if exporter == "dynamo" else {"dynamo": False, "opset_version": 17}
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    module.eval(),
                    (example,),
                    str(path),
                    input_names=["x"],
                    output_names=["y"],
                    verbose=False,
                    **options,
                )
    return made


def feed(name: str) -> np.ndarray:
    return IDS if name.startswith("encoder") else PIXELS


def assert_checks(path: Path, given: np.ndarray, rule: str, capsys: pytest.CaptureFixture[str], *options: str) -> None:
    artifact, values = path.with_suffix(".tsm"), path.with_suffix(".npy")
    np.save(values, given)
    assert main.main(["compile", str(path), "-o", str(artifact), "--no-host", *options]) == errors.OK
    capsys.readouterr()
    code = main.main(["check", str(artifact), str(path), "--input", f"x={values}", "--json"])
    (y,) = json.loads(capsys.readouterr().out)["outputs"]
    assert y["rule"].startswith(rule)
    assert (code, y["ok"]) == (errors.OK, True)


@pytest.mark.parametrize("name", ["encoder.dynamo", "encoder.script", "cnn.dynamo", "cnn.script"])
def test_both_exporters(name: str, exported: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert_checks(exported[name], feed(name), "float32", capsys)


@pytest.mark.parametrize("name", ["encoder.script", "cnn.script"])
def test_converted_to_half_floats_with_inputs_and_outputs_of_float32(
    name: str, exported: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(in_half(onnx.load(exported[name])), tmp_path / "m.onnx")
    assert_checks(tmp_path / "m.onnx", feed(name), "float16 inside", capsys)


@pytest.mark.parametrize(("precision", "rule"), [("fp16", "float16 inside"), ("bf16", "bfloat16 inside")])
def test_compiled_with_less_precision(
    precision: str, rule: str, exported: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(exported["encoder.script"].read_bytes())
    assert_checks(path, IDS, rule, capsys, "--precision", precision)


class _Calibration:
    """What ONNX Runtime's quantiser asks for inputs."""

    def __init__(self, given: np.ndarray) -> None:
        self._feeds = iter([{"x": given}, {"x": given[..., ::-1].copy()}])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.mark.parametrize("name", ["encoder.script", "cnn.script"])
@pytest.mark.parametrize("way", ["dynamic", "static"])
def test_quantised_by_onnx_runtime(
    way: str, name: str, exported: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    out = tmp_path / "m.onnx"
    if way == "dynamic":
        quantization.quantize_dynamic(exported[name], out, weight_type=quantization.QuantType.QInt8)
    else:
        quantization.quantize_static(
            exported[name], out, _Calibration(feed(name)), quant_format=quantization.QuantFormat.QDQ, per_channel=True
        )
    assert_checks(out, feed(name), "one step of quantisation to 8 bits inside", capsys)
