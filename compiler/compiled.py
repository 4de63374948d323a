"""A compiled model in memory, and its explanation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch import __version__
from tilestitch.compiler.ir import Graph
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan import StitchPlan
from tilestitch.runtime.artifact_writer import ArtifactContents, artifact_bytes, weights_path, write_artifact

from .errors import ChangedWeightsError, OptionError
from .options import is_path
from .prepare import Prepared

if TYPE_CHECKING:
    from tilestitch.codegen.assemble import Assembled
    from tilestitch.compiler.frontend.tensors import MappedFile

EXPLANATION = "explain.json"
"""Artifact member that `tilestitch explain` reads."""


@dataclass(frozen=True)
class Specialisation:
    """The compilation for one set of input shapes."""

    graph: Graph
    plan: StitchPlan
    explanation: Mapping[str, Any]


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model in memory. `specialisations` are in the order of the given shape sets.

    `mapped`: files of external data that weights are read from when the artifact is written.
    """

    contents: ArtifactContents
    specialisations: tuple[Specialisation, ...]
    mapped: frozenset[MappedFile] = frozenset()

    @property
    def plan(self) -> StitchPlan:
        """The plan of the first specialisation."""
        return self.specialisations[0].plan

    @property
    def plans(self) -> tuple[StitchPlan, ...]:
        """The plans of all specialisations, for replay."""
        return tuple(each.plan for each in self.specialisations)

    def explain(self) -> dict[str, Any]:
        """Return the first specialisation's output of `tilestitch explain --json`, with the others under
        `specialisations`.
        """
        first, *others = (dict(s.explanation) for s in self.specialisations)
        return {**first, "specialisations": others} if others else first

    def __repr__(self) -> str:
        from tilestitch.runtime.value_info import ValueInfo, in_one_line

        program = self.contents.programs[0]
        inputs = in_one_line([ValueInfo(program.values[n].name, program.values[n].type) for n in program.inputs])
        results = program.results.items()
        outputs = in_one_line([ValueInfo(name, program.values[number].type) for name, number in results])
        kernels = sum(s.plan.kernel_count for s in self.specialisations)
        more = f", {len(self.specialisations)} specialisations" * (len(self.specialisations) > 1)
        steps = sum(s.explanation["host"]["steps"] for s in self.specialisations)
        more = f" and {steps} host steps{more}" if steps else more
        target = self.contents.target.kind
        return f"<CompiledModel for {target}: {kernels} kernels{more}, ({inputs}) -> ({outputs})>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact atomically. With stripped weights, they go to `PATH.weights.safetensors` beside it; both
        files are written, or neither.

        Raises OptionError for an invalid path, ArtifactWriteError if the disk is full or the folder cannot be written,
        and ChangedWeightsError if a file of external data was written to since the model was compiled.
        """
        if not is_path(path):
            raise OptionError(f"path is {path!r}; give the path of the artifact to write")
        self._check_mapped()
        target = Path(path)
        write_artifact(target, self.contents, weights_path(target) if self.contents.strip_weights else None)
        return target

    def to_bytes(self) -> bytes:
        """Return the artifact as bytes, for `tilestitch.runtime.load`. Raises ChangedWeightsError as `save` does."""
        self._check_mapped()
        return artifact_bytes(self.contents)

    def _check_mapped(self) -> None:
        changed = sorted(str(file.path) for file in self.mapped if file.is_changed)
        if changed:
            raise ChangedWeightsError(
                f"{', '.join(changed)}: changed since the model was compiled; the artifact's weights are read from "
                "there when it is written; compile the model again, and save it before its files are written anew"
            )


def explained(
    assembled: Assembled,
    prepared: Sequence[Prepared],
    plain: Sequence[Prepared],
    precision: str,
    strip_weights: bool,
    context: PassContext,
) -> CompiledModel:
    """Return the compiled model with the explanation of every specialisation.

    `plain`: the counterparts of all specialisations without tile synchronisation, if there are any.
    """
    from tilestitch.passes.explain import explain_plan
    from tilestitch.passes.explanation import without_plans

    count = len(prepared)
    programs = tuple(
        replace(program, plain=number >= count) for number, program in enumerate(assembled.contents.programs)
    )

    contents = replace(
        assembled.contents,
        programs=programs,
        plan=assembled.contents.plan[:count],
        precision=precision,
        compiler_version=__version__,
        strip_weights=strip_weights,
    )
    specialisations = []

    def explanation_of(p: Prepared) -> dict[str, Any]:
        graph, plan = p.planned.graph, p.planned.plan
        return explain_plan(graph, plan, launches=assembled.launches, target=context.target, model=context.cost_model)

    for p, counterpart in zip_longest(prepared, plain):
        graph, plan, explanation = p.planned.graph, p.planned.plan, explanation_of(p)
        if counterpart is not None:
            launches, predicted = counterpart.planned.plan.launches or (), explanation_of(counterpart)["prediction"]
            explanation["plain"] = {"launches": len(launches), "predicted_us": predicted["total_us"]}
        specialisations.append(Specialisation(graph, plan, {**explanation, "precision": precision, **p.remarks}))
    compiled = CompiledModel(contents, tuple(specialisations))
    short = without_plans(compiled.explain(), contents.plan)
    extra = {**contents.extra, EXPLANATION: json.dumps(short, sort_keys=True, separators=(",", ":")).encode()}
    return replace(compiled, contents=replace(contents, extra=extra))
