"""Mistakes in plug-ins: each gives a message that names the plug-in, its class, the line, the rule, and the nodes."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from onnx import parser

from tests.models import transformer
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.main import main
from tilestitch.passes.api import PluginError, PluginFault

ONE_KERNEL = parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> one (float[8] x) => (float[8] y) { y = Exp(x) }'
)
HEAD = """\
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.passes.api import (
    CKernel, Combine, CostModel, CudaKernel, Fuse, Graph, GraphPass, PassResult, Rule, Schedule, WhyNot,
)


@dataclass(frozen=True)
class Mine({base}):
    name: ClassVar[str] = "mine"

"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    return tmp_path


def write(folder: Path, base: str, method: str) -> Path:
    path = folder / "faulty.py"
    path.write_text(HEAD.format(base=base) + textwrap.indent(textwrap.dedent(method).strip("\n"), "    ") + "\n")
    return path


MISTAKES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "a pass raises": (
        "GraphPass", "run",
        """
        def run(self, graph, context):
            node = graph.nodes[0]
            return 1 / 0  # here
        """,
        ("run raised ZeroDivisionError: division by zero", "nodes: "),
    ),
    "a pass raises in a function that it calls": (
        "GraphPass",
        "run",
        """
        def run(self, graph, context):
            for node in graph.nodes:
                if node.op == "matmul":
                    return self.look(node)

        def look(self, thing):
            return len(7)  # here
        """,
        ("run raised TypeError", "nodes: matmul"),
    ),
    "a pass returns nothing": (
        "GraphPass", "run",
        """
        def run(self, graph, context):  # here
            pass
        """,
        ("run returned None", "returns a PassResult"),
    ),
    "a pass makes a cycle": (
        "GraphPass", "run",
        """
        def run(self, graph, context):  # here
            first = next(n for n in graph.nodes if n.op == "add")
            graph.set_input(first, 0, first.output)
            return PassResult(graph, True)
        """,
        ("not well formed", "before it is defined"),
    ),
    "a pass leaves operands that do not fit": (
        "GraphPass", "run",
        """
        def run(self, graph, context):  # here
            node = next(n for n in graph.nodes if n.op == "matmul")
            node.attrs["colour"] = "red"
            return PassResult(graph, True)
        """,
        ("not well formed", "unknown: ['colour']"),
    ),
    "a pass drops an output": (
        "GraphPass", "run",
        """
        def run(self, graph, context):  # here
            graph.outputs = []
            return PassResult(graph, True)
        """,
        ("changed the outputs of graph",),
    ),
    "a pass leaves": (
        "GraphPass", "run",
        """
        def run(self, graph, context):
            raise SystemExit(0)  # here
        """,
        ("run raised SystemExit",),
    ),
    "a rule raises where it forbids": (
        "Rule", "forbid",
        """
        def forbid(self, state, nodes):
            return nodes[0].colour  # here
        """,
        ("forbid raised AttributeError", "'Node' object has no attribute 'colour'", "nodes: ", "/"),
    ),
    "a rule forbids by a word": (
        "Rule", "forbid",
        """
        def forbid(self, state, nodes):  # here
            return "no"
        """,
        ("forbid returned str 'no'", "returns a WhyNot or None", "nodes: "),
    ),
    "a rule raises between proposals": (
        "Rule", "propose",
        """
        def propose(self, state):
            for node in state.nodes:
                yield Fuse((node,))
                raise KeyError(node.name)  # here
        """,
        ("propose raised KeyError", "nodes: "),
    ),
    "a rule proposes nodes themselves": (
        "Rule", "propose",
        """
        def propose(self, state):  # here
            yield state.nodes[0]
        """,
        ("propose yielded Node", "yields Fuse objects"),
    ),
    "a rule proposes nothing at all": (
        "Rule",
        "propose",
        """
        def propose(self, state):  # here
            yield None
        """,
        ("propose yielded None",),
    ),
    "a rule proposes lists": (
        "Rule",
        "propose",
        """
        def propose(self, state):  # here
            yield Fuse(([state.nodes[0], state.nodes[1]],))
        """,
        ("names no node",),
    ),
    "a rule forbids without numbers": (
        "Rule",
        "forbid",
        """
        def forbid(self, state, nodes):  # here
            return WhyNot(nodes[0].name, self.name, "no", None)
        """,
        ("forbid returned WhyNot",),
    ),
    "a pass notes a number": (
        "GraphPass",
        "run",
        """
        def run(self, graph, context):  # here
            return PassResult(graph, False, 3)
        """,
        ("notes that are no tuple of str: 3",),
    ),
    "a rule proposes foreign nodes": (
        "Rule", "propose",
        """
        def propose(self, state):  # here
            yield Fuse(tuple(state.graph.clone().nodes[:2]))
        """,
        ("that is not in the graph",),
    ),
    "a rule returns a list": (
        "Rule", "propose",
        """
        def propose(self, state):  # here
            return []
        """,
        ("propose returned list []",),
    ),
    "a rule never ends": (
        "Rule", "propose",
        """
        def propose(self, state):  # here
            while True:
                yield Fuse((state.nodes[0],))
        """,
        ("yielded more than 200000 proposals",),
    ),
    "a rule rewrites the graph": (
        "Rule", "propose",
        """
        def propose(self, state):  # here
            state.graph.emit("neg", state.nodes[-1].output)
            return iter(())
        """,
        ("propose changed the graph",),
    ),
    "a rule combines by names": (
        "Rule", "combine",
        """
        def combine(self, kernels):  # here
            yield tuple(kernels.groups)
        """,
        ("combine yielded tuple",),
    ),
    "a rule forbids with numbers that no plan can hold": (
        "Rule",
        "forbid",
        """
        def forbid(self, state, nodes):  # here
            return WhyNot(nodes[0].name, self.name, "too large", {"size": float("inf")})
        """,
        ("forbid returned WhyNot", "whose numbers are finite"),
    ),
    "a rule combines by an unknown tie": (
        "Rule",
        "combine",
        """
        def combine(self, kernels):  # here
            yield Combine((tuple(kernels.groups)[:2],), tie="string")
        """,
        ("another tie than ('barrier', 'band', 'block')",),
    ),
    "a rule combines by a list": (
        "Rule",
        "combine",
        """
        def combine(self, kernels):  # here
            yield Combine([list(kernels.groups)[:2]])
        """,
        ("has no stages of names",),
    ),
    "a schedule raises": (
        "Schedule", "schedule",
        """
        def schedule(self, graph, group, target):
            return {}[group.name]  # here
        """,
        ("schedule raised KeyError", "nodes: "),
    ),
    "a schedule returns text": (
        "Schedule", "schedule",
        """
        def schedule(self, graph, group, target):  # here
            return "void kernel() {}"
        """,
        ("schedule returned str",),
    ),
    "a schedule brings CUDA to a CPU": (
        "Schedule", "schedule",
        """
        def schedule(self, graph, group, target):  # here
            return [CudaKernel("TILESTITCH_KERNEL", (1, 1, 1), (1, 1, 1), group.outputs)]
        """,
        ("for cpu, which takes CKernel or TirKernel", "nodes: "),
    ),
    "a schedule forgets an output": (
        "Schedule", "schedule",
        """
        def schedule(self, graph, group, target):  # here
            return [CKernel("void TILESTITCH_KERNEL(int64_t task) {}", ())]
        """,
        ("gives no kernel the output %",),
    ),
    "a schedule reads a foreign value": (
        "Schedule", "schedule",
        """
        def schedule(self, graph, group, target):  # here
            return [CKernel("void TILESTITCH_KERNEL(float *x, int64_t task) {}", ("strange",))]
        """,
        ("%strange, which is no input, constant or output of group",),
    ),
    "a schedule asks for too many threads": (
        "Schedule", "schedule",
        """
        def schedule(self, graph, group, target):
            return [CudaKernel("TILESTITCH_KERNEL", (1, 1, 1), (64, 32, 1), group.outputs)]  # here
        """,
        ("schedule raised ValueError: block is (64, 32, 1), 2048 threads",),
    ),
    "a cost model is not a number": (
        "CostModel", "latency_us",
        """
        def latency_us(self, kernel, device):  # here
            return float("nan")
        """,
        ("latency_us returned nan", "finite and not negative"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_name_class_line_rule_and_nodes(mistake: str, folder: Path) -> None:
    base, method, source, said = MISTAKES[mistake]
    path = write(folder, base, source)
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "# here" in text)
    with pytest.raises(PluginFault) as raised:
        compile_model(transformer(layers=1), passes=["faulty:Mine"])
    message = str(raised.value)
    assert "plug-in mine (faulty:Mine, --pass faulty:Mine)" in message
    assert f"at {path}:{line}" in message
    assert f"the rule: `{method}(" in message
    assert "repair the plug-in" in message
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("target", "kernel", "said"),
    [
        ("cpu", 'CKernel("void TILESTITCH_KERNEL(float *y, int64_t task) {{ y[0] = colour; }}", {args})', "colour"),
        ("cpu", 'CKernel("int unrelated; /* TILESTITCH_KERNEL */", {args})', "implicit declaration"),
        ("cpu", 'CKernel("int shared; void TILESTITCH_KERNEL() {{}}", {args})', "shared.*static"),
        (
            "cpu",
            'CKernel("int puts(); void TILESTITCH_KERNEL() {{ puts(0); }}", {args})',
            "puts",
        ),
        ("cuda:sm_80", 'CudaKernel("TILESTITCH_KERNEL colour", (1, 1, 1), (1, 1, 1), {args})', "error"),
    ],
)
def test_a_kernel_that_does_not_compile_is_the_plugins(folder: Path, target: str, kernel: str, said: str) -> None:
    text = kernel.format(args="group.outputs")
    write(folder, "Schedule", f"def schedule(self, graph, group, target):\n    return [{text}]")
    with pytest.raises(Exception, match=rf"plug-in mine \(faulty:Mine, .*its kernel .* cannot be compiled.*{said}"):
        compile_model(ONE_KERNEL, target, passes=["faulty:Mine"], cache=False)


def test_a_refused_class_is_named_with_its_line(folder: Path) -> None:
    path = write(folder, "Rule", "pass")
    path.write_text(path.read_text().replace("@dataclass(frozen=True)", "@dataclass"))
    with pytest.raises(PluginError, match=rf"class faulty:Mine at {path}:9 .* not frozen"):
        compile_model(transformer(layers=1), passes=["faulty:Mine"])


def test_verbose_shows_the_plugins_own_traceback_and_only_that(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        folder, "Rule", "def forbid(self, state, nodes):\n    return self.help()\n\ndef help(self):\n    return 1 / 0"
    )
    (folder / "m.onnx").write_bytes(transformer(layers=1).SerializeToString())
    monkeypatch.chdir(folder)
    command = ["compile", "m.onnx", "-o", "m.tsm", "--pass", "faulty:Mine"]
    assert main(command) == errors.USER
    brief = capsys.readouterr().err
    assert "Traceback" not in brief and "internal error" not in brief and "fault of tilestitch" not in brief
    assert main([*command, "--verbose"]) == errors.USER
    full = capsys.readouterr().err
    assert f'File "{path}", line 17, in help' in full and "in forbid" in full
    assert "stitcher.py" not in full and "guards.py" not in full
