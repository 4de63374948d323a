"""The page of a forecast: well formed, with every kernel in its timeline and every size in its plot."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import onnx
import pytest

from tests.compiler.forecast.test_forecast import graph_of, model, node, weight
from tilestitch.compiler.cli.main import main
from tilestitch.compiler.forecast.forecast import forecast
from tilestitch.compiler.forecast.gpus import find_gpu
from tilestitch.compiler.forecast.page import Case, page

NODES = [node("MatMul", "x w", "h"), node("Softmax", "h", "y", axis=-1)]
WEIGHTS = [weight("w", 96, 96)]


def parsed(text: str) -> ElementTree.Element:
    """The page as XML, which it is but for the declaration and one empty element."""
    text = text.replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', "")
    return ElementTree.fromstring(text)


def titles(root: ElementTree.Element) -> list[str]:
    return [found.text or "" for found in root.iter("{http://www.w3.org/2000/svg}title")]


@pytest.mark.parametrize("runtime", ["tilestitch", "pytorch"])
def test_every_kernel_is_in_the_timeline_with_its_bound(runtime: str) -> None:
    found = forecast(graph_of(NODES, WEIGHTS), find_gpu("h100"), runtime)  # type: ignore[arg-type]
    root = parsed(page("a <model> & more.onnx", None, [Case(None, found)]))
    told = titles(root)
    for kernel in found.kernels:
        assert any(f"{kernel.name}: {kernel.us:.2f} µs" in one and kernel.bound in one for one in told)
    assert "a <model> & more.onnx" in (root.find(".//h1").text or "")  # type: ignore[union-attr]


def test_a_sweep_is_a_line_for_each_gpu_over_its_sizes() -> None:
    gpus = [find_gpu(name) for name in ("h100", "l4")]
    cases = [
        Case(size, forecast(graph_of(NODES, WEIGHTS, (size, 96)), gpu, "pytorch")) for size in (64, 128, 4096)
        for gpu in gpus
    ]  # fmt: skip
    root = parsed(page("m.onnx", "batch", cases))
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [len((line.get("points") or "").split()) for line in lines] == [3, 3]
    shown = "".join(root.itertext())
    assert all(text in shown for text in ("4096", "batch", gpus[0].name, gpus[1].name))


def test_the_command_writes_the_page_and_nothing_in_the_place_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(model(NODES, WEIGHTS), source)
    command = ["predict", str(source), "--device", "h100,l4", "--runtime", "pytorch"]
    assert main([*command, "--report", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert parsed(text) is not None and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert main([*command, "--report", str(source)]) == 1
    assert onnx.load(source)
    capsys.readouterr()
