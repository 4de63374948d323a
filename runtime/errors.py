"""Errors that the runtime raises.

All derive from `TilestitchRuntimeError`. `exit_code` is what the command line returns for the error:
1 the user's input is wrong, 2 the model is not supported, 3 an accuracy check failed, 4 the environment lacks
something.
"""

from __future__ import annotations


class TilestitchRuntimeError(Exception):
    """Base class of the runtime's errors."""

    exit_code = 1


class ArtifactError(TilestitchRuntimeError):
    """A `.tsm` file cannot be used. `member` is the zip member at fault, empty when the file as a whole is at fault."""

    def __init__(self, problem: str, *, file: str = "", member: str = "", remedy: str = "") -> None:
        self.problem = problem
        self.file = file
        self.member = member
        self.remedy = remedy or "compile the model again, or copy the file again from where it was made"
        super().__init__(problem, file, member, remedy)

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.file, self.member and f"member {self.member!r}") if part)
        return f"{where + ': ' if where else ''}{self.problem}; {self.remedy}"


class NotAnArtifactError(ArtifactError):
    """The file is not a tilestitch artifact, or is cut off."""


class ArtifactVersionError(ArtifactError):
    """The artifact was written in a format that this runtime does not know."""


class ArtifactIntegrityError(ArtifactError):
    """A member differs from what the manifest recorded."""


class ArtifactLayoutError(ArtifactError):
    """The zip holds members, or members stored in ways, that an artifact never has."""


class ArtifactSchemaError(ArtifactError):
    """A JSON member or the tensor file does not follow its schema."""


class ArtifactWriteError(ArtifactError):
    """The artifact could not be written; no partial file is left."""

    exit_code = 4


class WeightsError(TilestitchRuntimeError):
    """Weights supplied at load do not fit the artifact, or are missing."""


class InputError(TilestitchRuntimeError):
    """The arguments of `run` do not fit the model's inputs."""


class ExecutionError(TilestitchRuntimeError):
    """The model failed while running: for instance an index out of range."""


class UnsupportedError(TilestitchRuntimeError):
    """The artifact needs an operator or data type that this runtime does not have."""

    exit_code = 2


class DeviceError(TilestitchRuntimeError):
    """The requested device is not available, or the artifact was not built for it."""

    exit_code = 4


class DeviceNameError(DeviceError):
    """A text is not the name of a device."""

    exit_code = 1


class PartitionWarning(UserWarning):
    """A model runs on another number of a GPU's multiprocessors than it was planned for."""


class HostError(ExecutionError):
    """A numpy operator got operands for which it has no result: an index out of range, shapes that do not fit.

    The message says which value; the caller adds the name of the ONNX node.
    """
