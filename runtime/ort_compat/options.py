"""The options of ONNX Runtime's sessions and runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class GraphOptimizationLevel(Enum):
    """Ignored: optimisation happens at compile time."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(Enum):
    """Ignored: the compiler has chosen the order of kernels."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass
class SessionOptions:
    """`intra_op_num_threads` is the number of threads (0: the default). The others have no effect."""

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: Any = None
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    _entries: dict[str, str] = field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return the value of an entry. Raises KeyError for one that was not added."""
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        _without_effect(f"dimension {name!r} is what the model was compiled for; compile it with --shape for {size}")

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        _without_effect(f"dimensions are what the model was compiled for; compile it with --shape for {size}")

    def register_custom_ops_library(self, path: str) -> None:
        _without_effect(f"custom operators come from compiling, {path} is not loaded")

    def warn_of_what_does_not_happen(self) -> None:
        if self.enable_profiling:
            _without_effect("enable_profiling: no profile is written; see Module.profile and `tilestitch bench`")
        if self.optimized_model_filepath:
            _without_effect(f"{self.optimized_model_filepath} is not written; the model was optimised when compiled")


@dataclass
class RunOptions:
    """Options of a run; none has an effect."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    training_mode: bool = False
    _entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return the value of an entry. Raises KeyError for one that was not added."""
        return self._entries[key]


def _without_effect(problem: str) -> None:
    warnings.warn(f"tilestitch runs a compiled model: {problem}", stacklevel=4)
