"""Builds chains of programs, for operands of known types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from .chain import Chain, Link, Spec, memory_that_stays
from .control import leading
from .host_runs import fits
from .hostmemory import empty_tensor
from .iterations import MOST_ITERATIONS, Iterations, NativeLoop, Repetition, native_loop_of
from .linked import Branch, LinkedIf, LinkedLoop, LinkedScan, LinkedStep
from .moves import Repeatable
from .program import Body, CallStep, ControlStep, IfStep, LoopStep, NativeStep, Program, ScanStep, ValueSpec
from .types import TensorType


class Linkable(Protocol):
    """Executor of a control step's body that can expose the body's parts."""

    def linkable(self, inputs: Sequence[Any], step: ControlStep) -> Parts | None:
        """Return the parts for inputs such as these; None where they do not fit."""


@dataclass(frozen=True)
class Parts:
    """A program bound to memory. `steps`: its native steps as segments; `fixed`: its values that are the same in every
    run; `spec`: its values, with numbers for sizes.
    """

    program: Program
    steps: Sequence[Any]
    repetitions: Mapping[int, Repetition | None]
    nested: Mapping[int, Linkable]
    spec: Spec
    fixed: list[Any]


def chain_of(parts: Parts, inputs: Sequence[Any], lent: Mapping[int, Any] = MappingProxyType({})) -> Chain | None:
    """Return the chain of a program for inputs such as these, or None if it cannot be one. The inputs and outputs in
    `lent` have their memory from the caller in all runs.
    """
    staying = memory_that_stays(parts.program, parts.spec)
    if staying is None:
        return None
    known = parts.fixed.copy()
    for number, array in (*staying.items(), *lent.items()):
        known[number] = array
    values = known.copy()
    for number, array in zip(parts.program.inputs, inputs):
        values[number] = array
    linker = _Linker(parts, values, known)
    ends = ([number for number in end if number not in lent] for end in (parts.program.inputs, parts.program.outputs))
    chain = Chain(known, *ends)
    for index in range(len(parts.program.steps)):
        link = linker.link(index)
        if link is None:
            return None
        chain.links.append(link)
    return chain


@dataclass(frozen=True)
class _Linker:
    """Builder of the links. `values`: the `known` ones, and the inputs as examples."""

    parts: Parts
    values: list[Any]
    known: list[Any]

    def link(self, index: int) -> Link | None:
        step = self.parts.program.steps[index]
        match step:
            case NativeStep():
                return LinkedStep(self.parts.steps[index], self.known)
            case ScanStep():
                return self._scan(step, self.parts.repetitions[index])
            case LoopStep():
                return self._loop(step, self.parts.repetitions[index])
            case IfStep():
                first, second = self._branch(step, step.then_body), self._branch(step, step.else_body)
                return None if first is None or second is None else LinkedIf(step, first, second)
            case CallStep():
                return self._branch(step, step.body)
        return None

    def _scan(self, step: ScanStep, repetition: Repetition | None) -> LinkedScan | None:
        """Return the iterations of a scan whose operands have these values' types; `known` values stay the same."""
        operands = self._examples((*step.states, *step.scans, *step.body.captures))
        if operands is None or repetition is None:
            return None
        slices = operands[len(step.states) : len(step.states) + len(step.scans)]
        lengths = {len(part) for part in slices if part.ndim}
        if len(lengths) != 1 or 0 in lengths or not all(part.ndim for part in slices):
            return None
        states = operands[: len(step.states)]
        iterations = Iterations(lengths.pop(), states, slices, step.input_directions, step.output_directions)
        captures = operands[len(step.states) + len(step.scans) :]
        found = self._native_loop(step, repetition, iterations, captures)
        if found is None:
            return None
        body, loop = found
        inputs, fixed = body.program.inputs, body.fixed.copy()
        return LinkedScan(step, repetition, loop, self.known, fixed, iterations.most, self.parts.spec, inputs)

    def _loop(self, step: LoopStep, repetition: Repetition | None) -> LinkedLoop | None:
        operands = self._examples((*step.carried, *step.body.captures))
        if operands is None or repetition is None:
            return None
        states = operands[: len(step.carried)]
        backwards = (False,) * len(repetition.results)
        iterations = Iterations(MOST_ITERATIONS, states, results_backwards=backwards, leading=leading(step.body, 0))
        found = self._native_loop(step, repetition, iterations, operands[len(step.carried) :])
        if found is None:
            return None
        body, loop = found
        inputs, fixed = body.program.inputs, body.fixed.copy()
        loop.settle(inputs, len(fixed), body.spec)
        return LinkedLoop(step, repetition, loop, self.known, fixed, self.parts.spec, inputs)

    def _native_loop(
        self, step: LoopStep | ScanStep, repetition: Repetition, iterations: Iterations, captures: Sequence[np.ndarray]
    ) -> tuple[Parts, NativeLoop] | None:
        """Return the parts of an iterated body, and its iterations in native code."""
        body = self._body(step, step.body, [*iterations.formal, *captures])
        if body is None or not isinstance(body.steps[0], Repeatable):
            return None
        loop = native_loop_of(repetition, iterations, body.steps[0], body.spec)
        return None if loop is None else (body, loop)

    def _branch(self, step: IfStep | CallStep, body: Body) -> Branch | None:
        operands = self._examples(body.captures)
        inner = None if operands is None else self._body(step, body, operands)
        if inner is None or operands is None:
            return None
        outputs = tuple(zip(body.program.outputs, step.outputs))
        kinds = [self._kind(inner.spec(number), outer) for number, outer in outputs]
        if None in kinds:
            return None
        stored, made = (
            tuple(pair for pair, each in zip(outputs, kinds) if each == kind) for kind in ("stored", "made")
        )
        captured = tuple(zip(body.program.inputs, body.captures))
        lent = {number: self.known[outer] for number, outer in (*captured, *stored) if self.known[outer] is not None}
        chain = chain_of(inner, operands, lent)
        if chain is None:
            return None
        return Branch(
            chain, *(tuple(pair for pair in pairs if pair[0] not in lent) for pairs in (captured, stored, made))
        )

    def _kind(self, inside: ValueSpec, outer: int) -> str | None:
        """Return whether an output of a branch is `stored` in the outer value's memory or `made` anew; None if its type
        is not known in advance.
        """
        outside = self.parts.spec(outer).type
        if not isinstance(inside.type, TensorType) or not inside.type.is_static:
            return None
        if inside.type == outside:
            return "stored"
        return "made" if self.known[outer] is None and fits(empty_tensor(inside), outside) else None

    def _body(self, step: ControlStep, body: Body, inputs: Sequence[Any]) -> Parts | None:
        return self.parts.nested[id(body)].linkable(inputs, step)

    def _examples(self, numbers: Sequence[int]) -> list[np.ndarray] | None:
        """Return arrays of the types that the values will have; None if one type is not known in advance."""
        examples = []
        for number in numbers:
            array, value = self.values[number], self.parts.spec(number)
            if not isinstance(array, np.ndarray):
                if not isinstance(value.type, TensorType) or not value.type.is_static:
                    return None
                array = empty_tensor(value)
            examples.append(array)
        return examples
