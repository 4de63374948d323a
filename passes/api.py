"""The public interface for authors of plug-ins: all names that a package outside tilestitch may use.

The modules behind these names may change; the names stay. `API_VERSION` is incremented when a working plug-in could
break, and a plug-in that states another `api_version` is refused. `docs/plugins.md` explains them, `docs/first_pass.md`
is a tutorial, `docs/primitives.md` lists the operators of the graph.
"""

from tilestitch.compiler.ir import Graph, IRError, Kind, Node, TensorType, Value, kind_of
from tilestitch.cost_model.devices import CpuDevice, Device
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Launch, Part, Tail, Traffic
from tilestitch.cost_model.protocol import Prediction
from tilestitch.passes.fusion.rules.builtin import Fuse

from .contract import PassContext, PassResult
from .errors import PassError, PluginError, PluginFault, PluginWarning
from .fusion.stages import Combine
from .plan import Group, GroupKind, HostGroup, StitchPlan, WhyNot
from .plan.own_kernels import KERNEL_NAME, CKernel, CudaKernel, KernelTarget, Temporary, TirKernel
from .plan.target import TargetInfo
from .plugins.bases import API_VERSION, CostModel, GraphPass, Rule, Schedule
from .plugins.testing import assert_same_values, kernels_of, plan_of, run
from .plugins.views import KernelsView, KernelView, PlannerView

__all__ = [
    # base classes of plug-ins
    "API_VERSION",
    "GraphPass",
    "Rule",
    "Schedule",
    "CostModel",
    # the graph
    "Graph",
    "Node",
    "Value",
    "TensorType",
    "Kind",
    "kind_of",
    "IRError",
    # passes
    "PassContext",
    "PassResult",
    "TargetInfo",
    # rules
    "Fuse",
    "Combine",
    "WhyNot",
    "PlannerView",
    "KernelView",
    "KernelsView",
    "Group",
    "GroupKind",
    "HostGroup",
    "StitchPlan",
    # schedules
    "CudaKernel",
    "CKernel",
    "TirKernel",
    "Temporary",
    "KernelTarget",
    "KERNEL_NAME",
    # cost models
    "KernelFacts",
    "Launch",
    "Part",
    "Traffic",
    "Arithmetic",
    "Tail",
    "Prediction",
    "CpuDevice",
    "Device",
    # tests of plug-ins
    "plan_of",
    "kernels_of",
    "run",
    "assert_same_values",
    # errors
    "PassError",
    "PluginError",
    "PluginFault",
    "PluginWarning",
]
