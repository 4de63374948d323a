"""Errors of the passes, the pipeline and the plan."""

from __future__ import annotations


class PassError(Exception):
    """Base of everything the passes raise on purpose. `exit_code` is what the command line returns for it."""

    exit_code = 1


class PipelineError(PassError):
    """A textual pipeline does not parse, or names a pass, field or value that does not exist."""


class PassContractError(PassError):
    """A pass broke its contract: wrong result type, broken graph, lost origins."""


class PlanError(PassError):
    """A StitchPlan is not well formed."""


class PlanMismatchError(PlanError):
    """A StitchPlan belongs to another graph than the one it is replayed on."""


class PluginError(PassError):
    """A plug-in cannot be loaded, is no pass or rule, or its name is taken."""


class PluginFault(PluginError):
    """A plug-in raised, or gave back something that it must not. Its own error, if any, is the `__cause__`."""


class PluginWarning(UserWarning):
    """An installed plug-in cannot take part; everything else goes on without it."""
