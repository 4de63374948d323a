"""Errors and warnings of the compiler's driver. `exit_code` is what the command line returns for them."""


class OptionError(Exception):
    """Invalid or conflicting options of `compile_model`."""

    exit_code = 1


class HostStepsError(Exception):
    """Part of the model would run on the host, which was ruled out."""

    exit_code = 2


class OpenSizeError(Exception):
    """The model depends on sizes that only a run can tell; the message names the value that has them."""

    exit_code = 2


class ChangedWeightsError(Exception):
    """A file of external data was written to after the model was compiled."""

    exit_code = 1


class ExportError(Exception):
    """PyTorch cannot export the model to ONNX, or lacks what it needs for that (exit code 4)."""

    def __init__(self, problem: str, exit_code: int = 2) -> None:
        super().__init__(problem)
        self.exit_code = exit_code


class TuningError(Exception):
    """A model cannot be tuned, or a tuned kernel computes something else."""

    exit_code = 1


class ForecastError(Exception):
    """No forecast is possible: libraries have no measured kernels for an operator, or sizes are open."""

    exit_code = 2


class CacheWarning(UserWarning):
    """Compiled kernels are not cached, for the reason in the message."""
