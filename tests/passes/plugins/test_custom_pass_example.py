"""`examples/custom_pass` as an outside package: installed, found, seen in the explanation, gone after removal."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "custom_pass"

SCRIPT = """
import json, sys
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, explain_plan, load_plugins, make_plan, run_pipeline

graph = parse_graph('''graph @g(%x: float32[4,128]) -> (%y, %z) {
  %r = reduce_max(%x) {axes=[1], keepdims=true} : float32[4,1]
  %s = sub(%x, %r) : float32[4,128]
  %e = exp(%s) : float32[4,128]
  %t = reduce_sum(%e) {axes=[1], keepdims=true} : float32[4,1]
  %y = div(%e, %t) : float32[4,128]
  %z = erf(%x) : float32[4,128]
}''')
plugins = load_plugins(sys.argv[1:])
context = PassContext(rules=plugins.rules, plugins=plugins.records)
graph = run_pipeline(graph, context, extra=plugins.passes)
explanation = explain_plan(graph, make_plan(graph, context))
print(json.dumps({"ops": [n.op for n in graph.nodes], **explanation}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the example is installed into, as `pip install` would into site-packages; no network is used."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "custom_pass")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*command, "--no-build-isolation", "--target", str(folder), str(source)], check=True, timeout=120)
    return folder


def explained(path: Path | None, *texts: str) -> dict:
    """What the script prints in a process of its own that sees the packages in `path`."""
    prelude = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    command = [sys.executable, "-c", prelude + SCRIPT, *texts]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, cwd="/")
    return dict(json.loads(done.stdout))


def softmax_kernels(explanation: dict) -> list[list[str]]:
    return [k["nodes"] for k in explanation["kernels"] if {"t", "y"} & set(k["nodes"])]


def test_installed_it_is_found_and_recorded_but_its_default_forbids_nothing_here(site: Path) -> None:
    explanation = explained(site)
    assert [(p["name"], p["owner"]) for p in explanation["plugins"]] == [
        ("hard_gelu", "tilestitch-example-rules 0.1.0"),
        ("separate_softmax", "tilestitch-example-rules 0.1.0"),
    ]
    assert len(softmax_kernels(explanation)) == 1


def test_its_rule_shapes_the_plan_and_shows_in_the_explanation(site: Path) -> None:
    explanation = explained(site, "separate_softmax{row=64}")
    assert len(softmax_kernels(explanation)) == 2
    (refusal,) = [r for r in explanation["refusals"] if r["rule"] == "separate_softmax"]
    assert refusal["subject"] == "t -> y" and refusal["numbers"] == {"elements": 128, "limit": 64}


def test_its_rewrite_runs_with_its_argument(site: Path) -> None:
    assert "erf" in explained(site)["ops"]
    assert "erf" not in explained(site, "hard_gelu{slope=0.7}")["ops"]


def test_it_can_be_named_by_module_without_being_installed() -> None:
    text = "tilestitch_example_rules.separate_softmax:SeparateSoftmax{row=64}"
    assert len(softmax_kernels(explained(EXAMPLE, text))) == 2


def test_removed_it_is_gone() -> None:
    explanation = explained(None)
    assert explanation["plugins"] == []
    assert len(softmax_kernels(explanation)) == 1
