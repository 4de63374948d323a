"""The pass contract: textual pipelines, what a pass may not do, listeners, bisection."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.passes.helpers import ops
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph, print_graph
from tilestitch.passes import (
    DumpListener,
    PassContext,
    PassContractError,
    PassResult,
    PipelineError,
    TimingListener,
    VerifyListener,
    default_pipeline,
    run_pipeline,
)
from tilestitch.passes.pipeline import Fixpoint, pass_table
from tilestitch.passes.pipeline_text import parse_pipeline, print_pipeline


@dataclass(frozen=True)
class Sample:
    count: int = 1
    ratio: float = 0.5
    label: str = "none"
    flag: bool = False
    sizes: tuple[int, ...] = ()
    limit: int | None = None
    name: ClassVar[str] = "sample"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        return PassResult(graph, False)


TABLE = {**pass_table(), "sample": Sample}


def test_the_default_pipeline_prints_as_it_is_written() -> None:
    text = default_pipeline("cpu")
    assert parse_pipeline(print_pipeline(parse_pipeline(text, TABLE)), TABLE) == parse_pipeline(text, TABLE)


def test_arguments_are_fields() -> None:
    (found,) = parse_pipeline('sample{count=3, ratio=2, label="a b", flag=true, sizes=[1,2], limit=null}', TABLE)
    assert found == Sample(3, 2.0, "a b", True, (1, 2), None)
    assert print_pipeline([found]) == 'sample{count=3,ratio=2.0,label="a b",flag=true,sizes=[1,2]}'


SAMPLES = st.builds(
    Sample, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.booleans(),
    st.lists(st.integers()).map(tuple), st.none() | st.integers(),
)  # fmt: skip


@given(
    st.recursive(SAMPLES, lambda inner: st.builds(Fixpoint, st.lists(inner, max_size=3).map(tuple), st.integers(1, 9)))
)
@example(Sample(0, 0.0, "Infinity", False, (), None))
def test_any_pipeline_prints_and_parses_back(pass_: Any) -> None:
    assert parse_pipeline(print_pipeline([pass_]), TABLE) == (pass_,)


BAD = {
    "nonsense": "no pass 'nonsense'; known: .*algebra",
    "sample{size=1}": "no field 'size'; it has count",
    "dce{size=1}": "no field 'size'; it has none",
    "sample{count=x}": "field count: x is no int",
    "sample{count=true}": "field count: true is no int",
    "sample{flag=1}": "field flag: 1 is no bool",
    "sample{count=1,count=2}": "given twice",
    "sample{": "column 8: expected the name of a field, or '}', found the end; write NAME{field=value",
    "sample{count": "expected '=', found the end; write",
    "sample{count=": "expected a value, found the end; write",
    "sample}": "unexpected '}'",
    "sample,,dce": "column 8",
    "fixpoint": "needs passes in parentheses",
    "dce(cse)": "takes no passes",
    "fixpoint{limit=0}(dce)": "at least 1",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_pipeline_says_what_is_wrong(text: str) -> None:
    with pytest.raises(PipelineError, match=BAD[text]):
        parse_pipeline(text, TABLE)


@given(st.text(alphabet='dce{}()[]=,:" 1x', max_size=20))
def test_no_text_crashes_the_parser(text: str) -> None:
    with contextlib.suppress(PipelineError):
        parse_pipeline(text, TABLE)


def graph() -> Graph:
    return parse_graph("""graph @g(%x: float32[2]) -> (%y) {
      %a = neg(%x) : float32[2]
      %y = neg(%a) : float32[2]
    }""")


def test_the_graph_that_was_given_stays_as_it_is() -> None:
    original = graph()
    before = print_graph(original)
    run_pipeline(original, PassContext(), "algebra")
    assert print_graph(original) == before


def test_outputs_keep_their_names() -> None:
    text = """graph @g(%x: float32[2], %b: float32[2]) -> (%y) {
      %y = pow(%x, %two) : float32[2]
    }""".replace("{\n", "{\n %two = constant [2.0] : float32[]\n", 1)
    result = run_pipeline(parse_graph(text), PassContext(listeners=[VerifyListener()]))
    assert ops(result) == ["mul"] and result.outputs[0].name == "y"


def test_passes_must_return_a_result_and_keep_the_interface() -> None:
    class NoResult(Sample):
        def run(self, graph: Graph, context: PassContext) -> Any:
            return graph

    class DropsOutput(Sample):
        def run(self, graph: Graph, context: PassContext) -> PassResult:
            graph.outputs = []
            return PassResult(graph, True)

    with pytest.raises(PassContractError, match="must return a PassResult"):
        run_pipeline(graph(), PassContext(), [NoResult()])
    with pytest.raises(PassContractError, match="changed the outputs"):
        run_pipeline(graph(), PassContext(), [DropsOutput()])


def test_a_broken_graph_is_blamed_on_the_pass_that_broke_it() -> None:
    class Breaks(Sample):
        def run(self, graph: Graph, context: PassContext) -> PassResult:
            graph.nodes[0].attrs["colour"] = "red"
            return PassResult(graph, True)

    with pytest.raises(PassContractError, match="pass sample broke the graph"):
        run_pipeline(graph(), PassContext(listeners=[VerifyListener()]), [Breaks()])


def test_listeners_dump_and_take_times(tmp_path: Path) -> None:
    times = TimingListener()
    run_pipeline(graph(), PassContext(listeners=[DumpListener(tmp_path), times]), "cse,algebra,dce")
    assert times.runs == {"cse": 1, "algebra": 1, "dce": 1}
    (dump,) = tmp_path.iterdir()
    assert dump.name == "002-algebra.tsir"
    assert len(parse_graph(dump.read_text())) == 0


def test_bisection_leaves_out_passes_from_a_number_on() -> None:
    context = PassContext(bisect_limit=1)
    assert ops(run_pipeline(graph(), context, "cse,algebra")) == ["neg", "neg"]
    assert context.passes_run == 2
    assert ops(run_pipeline(graph(), PassContext(bisect_limit=2), "cse,algebra")) == []
