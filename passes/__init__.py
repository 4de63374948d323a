"""Transformations of graphs, and planning: from a graph to its StitchPlan.

plugins = load_plugins(texts_of_pass_options)
context = PassContext(target, {"planner": "stitch"}, rules=plugins.rules, plugins=plugins.records)
graph = run_pipeline(graph, context, extra=plugins.passes)
plan = make_plan(graph, context)
"""

from .contract import Pass, PassContext, PassResult
from .errors import (
    PassContractError,
    PassError,
    PipelineError,
    PlanError,
    PlanMismatchError,
    PluginError,
)
from .explain import explain_plan
from .explanation import explain_edge, explain_node
from .pipeline import DumpListener, TimingListener, VerifyListener, default_pipeline, run_pipeline
from .plan import Group, GroupKind, StitchPlan, WhyNot
from .plan.target import TargetInfo
from .plan_check import check_plan
from .planner import load_plan, make_plan
from .plugins.load import load_plugins

__all__ = [
    "DumpListener",
    "Group",
    "GroupKind",
    "Pass",
    "PassContext",
    "PassContractError",
    "PassError",
    "PassResult",
    "PipelineError",
    "PlanError",
    "PlanMismatchError",
    "PluginError",
    "StitchPlan",
    "TargetInfo",
    "TimingListener",
    "VerifyListener",
    "WhyNot",
    "check_plan",
    "default_pipeline",
    "explain_edge",
    "explain_node",
    "explain_plan",
    "load_plan",
    "load_plugins",
    "make_plan",
    "run_pipeline",
]
