"""Guards between the compiler and plug-ins: every call is guarded, and every result is checked.

To the compiler, a guard acts as a built-in pass, rule, schedule or cost model. Errors of a plug-in become a PluginFault
that names it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar, get_args

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.verify import verify
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, Bound, Prediction
from tilestitch.passes.contract import PLACES, PassContext, PassResult, broken_interface, interface_of
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.fusion.stages import RULE_TIES, Combine, Kernels
from tilestitch.passes.fusion.stitcher import MOST_PROPOSALS
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.own_kernels import KINDS, KernelTarget, OwnKernel, Temporary

from .faults import Identity
from .views import KernelsView, PlannerView

T = TypeVar("T")
_END = object()


@dataclass(frozen=True)
class Guard:
    """The base class of guards; `instance` is a plug-in from `identity`."""

    instance: Any
    identity: Identity

    @property
    def name(self) -> str:
        return self.identity.name

    def call(self, method: str, *arguments: Any, nodes: Sequence[Node] = ()) -> Any:
        with self.identity.blamed(method, nodes):
            return getattr(self.instance, method)(*arguments)

    def has(self, method: str) -> bool:
        return callable(getattr(self.instance, method, None))


class GuardedPass(Guard):
    """Guards a pass; the graph that it returns is verified."""

    @property
    def place(self) -> str:
        place: str = getattr(self.instance, "place", PLACES[-1])
        return place

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        before = interface_of(graph)
        result = self.call("run", graph, context)
        if not isinstance(result, PassResult) or not isinstance(result.graph, Graph):
            raise self._fault(f"run returned {_kind(result)}")
        if not isinstance(result.notes, list | tuple) or not all(isinstance(note, str) for note in result.notes):
            raise self._fault(f"run returned notes that are no tuple of str: {result.notes!r}")
        try:
            verify(result.graph)
            broken = broken_interface(before, result.graph)
        except Exception as error:
            raise self._fault(f"run left a graph that is not well formed: {error}") from error
        if broken:
            raise self._fault(f"run {broken}")
        return PassResult(result.graph, bool(result.modified), tuple(result.notes))

    def _fault(self, problem: str) -> Exception:
        return self.identity.fault("run", problem)


class GuardedRule(Guard):
    """Guards a fusion rule, which gets views of the planner's state."""

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        known = frozenset(state.nodes)
        for fuse in self._proposals("propose", PlannerView(state), Fuse, state.graph):
            named = (*_nodes(fuse.nodes), *_nodes(fuse.copies))
            if not fuse.nodes or not all(isinstance(node, Node) and node in known for node in named):
                raise self.identity.fault("propose", f"{fuse!r} names no node, or one that is not in the graph")
            yield fuse

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        if not self.has("forbid"):
            return None
        answer = self.call("forbid", PlannerView(state), tuple(nodes), nodes=nodes)
        if answer is not None and not _is_refusal(answer):
            raise self.identity.fault("forbid", f"forbid returned {_kind(answer)}", nodes)
        return answer

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        for combine in self._proposals("combine", KernelsView(kernels), Combine, kernels.graph):
            stages = combine.stages
            named = isinstance(stages, tuple) and all(
                isinstance(s, tuple) and set(map(type, s)) == {str} for s in stages
            )
            if not named or combine.tie not in RULE_TIES:
                raise self.identity.fault(
                    "combine", f"{combine!r} has no stages of names, or another tie than {RULE_TIES}"
                )
            yield combine

    def _proposals(self, method: str, view: object, kind: Callable[..., T], graph: Graph) -> Iterator[T]:
        """Yield the proposals of `method`, each checked; `graph` must be unchanged afterwards."""
        if not self.has(method):
            return
        before = _structure(graph)
        wanted = self.call(method, view)
        if not isinstance(wanted, Iterator):
            raise self.identity.fault(method, f"{method} returned {_kind(wanted)}")
        last: Sequence[Node] = ()
        count = 0
        while True:
            with self.identity.blamed(method, last):
                found: Any = next(wanted, _END)
            if found is _END:
                break
            count += 1
            if not isinstance(found, kind):  # type: ignore[arg-type]
                raise self.identity.fault(method, f"{method} yielded {_kind(found)}", last)
            if count > MOST_PROPOSALS:
                raise self.identity.fault(method, f"{method} yielded more than {MOST_PROPOSALS} proposals", last)
            last = found.nodes if isinstance(found, Fuse) else ()
            yield found
        if _structure(graph) != before:
            raise self.identity.fault(method, f"{method} changed the graph")


class GuardedSchedule(Guard):
    """Guards a schedule, whose kernels are checked before they are compiled."""

    def kernels(self, graph: Graph, group: Group, target: KernelTarget) -> tuple[OwnKernel, ...] | None:
        """Return its kernels for `group`; None leaves it to tilestitch's template."""
        members = set(group.nodes)
        nodes = [node for node in graph.nodes if node.name in members]
        before = _structure(graph)
        answer = self.call("schedule", graph, group, target, nodes=nodes)
        problem = "changed the graph" if _structure(graph) != before else None
        if answer is None and problem is None:
            return None
        problem = problem or _why_not_kernels(answer, group, target)
        if problem:
            raise self.identity.fault("schedule", f"schedule {problem}", nodes)
        return tuple(answer)


class GuardedModel(Guard):
    """Guards a cost model."""

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        """Return the prediction for each kernel; a class without our base may define only `latency_us`."""
        if not self.has("predict"):
            return [self._alone(kernel, device) for kernel in batch]
        answer = self.call("predict", tuple(batch), device)
        if not isinstance(answer, list | tuple) or len(answer) != len(batch):
            raise self.identity.fault("predict", f"predict returned {_kind(answer)} for {len(batch)} kernels")
        for kernel, found in zip(batch, answer, strict=True):
            if not _is_prediction(found):
                raise self.identity.fault("predict", f"predict returned {found!r} for a {kernel.kind} kernel")
        return list(answer)

    def _alone(self, kernel: KernelFacts, device: AnyDevice) -> Prediction:
        answer = self.call("latency_us", kernel, device)
        if not _is_time(answer):
            raise self.identity.fault("latency_us", f"latency_us returned {answer!r} for a {kernel.kind} kernel")
        return Prediction(float(answer), float(answer), float(answer))


def _is_prediction(found: object) -> bool:
    if not isinstance(found, Prediction) or found.bound not in get_args(Bound):
        return False
    times_us = (found.low_us, found.latency_us, found.high_us)
    return all(map(_is_time, times_us)) and found.low_us <= found.latency_us <= found.high_us


def _is_time(us: object) -> bool:
    return isinstance(us, Real) and math.isfinite(float(us)) and float(us) >= 0


def _why_not_kernels(answer: Any, group: Group, target: KernelTarget) -> str | None:
    """Return what is wrong with the kernels that a schedule returned."""
    fitting = KINDS[target.kind]
    if not isinstance(answer, list | tuple) or not answer:
        return f"returned {_kind(answer)}"
    odd = next((kernel for kernel in answer if not isinstance(kernel, fitting)), None)
    if odd is not None:
        return f"returned {_kind(odd)} for {target.kind}, which takes {' or '.join(k.__name__ for k in fitting)}"
    arguments = [argument for kernel in answer for argument in kernel.args]
    names = {a for a in arguments if isinstance(a, str)}
    foreign = names - {*group.inputs, *group.constants, *group.outputs}
    if foreign:
        return f"gives a kernel %{min(foreign)}, which is no input, constant or output of group {group.name}"
    missing = [v for v in group.outputs if v not in names]
    if missing:
        return f"gives no kernel the output %{missing[0]} of group {group.name}"
    sizes = {a for a in arguments if isinstance(a, Temporary)}
    if len({a.name for a in sizes}) != len(sizes):
        return "gives one temporary two sizes"
    return None


def _is_refusal(answer: object) -> bool:
    """Return whether `answer` is a WhyNot that a plan can store."""
    if not isinstance(answer, WhyNot) or not all(
        isinstance(w, str) for w in (answer.subject, answer.rule, answer.reason)
    ):
        return False
    numbers = answer.numbers.items() if isinstance(answer.numbers, Mapping) else [(None, None)]
    return all(type(k) is str and type(v) in (int, float) and math.isfinite(v) for k, v in numbers)


def _nodes(names: Any) -> tuple[Any, ...]:
    return tuple(names) if isinstance(names, list | tuple) else (names,)


def _kind(value: object) -> str:
    """Return a description of a value of the wrong type."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return "None" if value is None else f"{type(value).__name__} {shown}"


def _structure(graph: Graph) -> int:
    """Return a hash that almost certainly changes when a node is added, removed, moved, or given another operand or an
    attribute.
    """
    return hash(tuple((node.op, node.name, node.inputs, node.outputs, len(node.attrs)) for node in graph.nodes))
