"""A model as it is measured: its graph, and what its plans are made and compiled with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch import __version__
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cpu.backend import CpuBackend
from tilestitch.codegen.cpu.target import CpuTarget
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan import StitchPlan
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.session import Module

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model as the planner gets it, and what its plans are made with."""

    name: str
    graph: Graph
    output_names: tuple[str, ...]
    context: PassContext
    backend: CpuBackend
    inputs: Inputs | None

    @staticmethod
    def of(path: Path, target: CpuTarget, threads: int, model: LatencyModel) -> Subject:
        """Return a subject with inputs from a .npz file beside the model, or random ones. Raises the errors of frontend
        and passes.
        """
        backend = CpuBackend(target, threads)
        context = PassContext(backend.planned_for(threads), {"planner": "stitch"}, cost_model=model)
        imported = import_model(path)
        graph = run_pipeline(imported.graph, context)
        beside = path.with_suffix(".npz")
        inputs = dict(np.load(beside)) if beside.is_file() else None
        return Subject(path.stem, graph, tuple(imported.output_names), context, backend, inputs)

    def compiled(self, plan: StitchPlan) -> Module:
        """Return the model compiled by a plan, ready to run."""
        planned = Planned(self.graph, plan, self.output_names)
        assembled = assemble([planned], self.backend, keep_source=False, progress=lambda *_: None)
        contents = replace(assembled.contents, compiler_version=__version__)
        return load(artifact_bytes(contents), device="cpu", num_threads=self.backend.threads)
