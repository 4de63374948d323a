"""Errors of the passes, the pipeline and the plan."""


class PassError(Exception):
    """Base class of the passes' errors. `exit_code` is what the command line returns for it."""

    exit_code = 1


class PipelineError(PassError):
    """A textual pipeline does not parse, or has an unknown pass, field or value."""


class PassContractError(PassError):
    """A pass broke its contract: wrong result type, broken graph, lost origins."""


class PlanError(PassError):
    """A StitchPlan is malformed."""


class PlanMismatchError(PlanError):
    """A StitchPlan belongs to another graph than the one it is replayed on."""


class PluginError(PassError):
    """A plug-in cannot be loaded, is neither pass nor rule, or its name is taken."""


class PluginFault(PluginError):
    """A plug-in raised an error, or returned an invalid result. Its own error, if any, is the `__cause__`."""


class PluginWarning(UserWarning):
    """An installed plug-in cannot be used; compilation continues without it."""


class SyncPolicyError(PassError):
    """Raised for an unknown policy of tile synchronisation, or one that would wait for too little."""
