"""Choice of the latency model: a model by name, a plug-in, or records of measured kernels."""

import os

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.models import model_named
from tilestitch.cost_model.protocol import LatencyModel

from .errors import OptionError


def chosen_model(name: str | None, plugin: LatencyModel | None) -> LatencyModel:
    """Return the latency model of this name; without a name the plug-in's, if there is one, else the analytical model.

    Raises OptionError for an unknown name, and where a name and a plug-in conflict.
    """
    if name is None:
        return plugin or model_named("analytical")
    if plugin is not None:
        raise OptionError(f"both {name} and the plug-in {plugin.name} are cost models; leave out one of the two")
    try:
        return model_named(name)
    except MeasurementError as error:
        raise OptionError(str(error)) from None


def with_records(
    model: LatencyModel, path: str | os.PathLike[str] | None, frozen: bool, target: str, threads: int
) -> LatencyModel:
    """Return a model that predicts recorded kernels by their measurements and all others by `model`. Raises OptionError
    where the file has no records of this machine.
    """
    if path is None:
        if frozen:
            raise OptionError("frozen needs records of measured kernels; name their file with records (--records)")
        return model
    if not target.startswith("cpu"):
        raise OptionError(f"records are of kernels for CPUs, not for {target}; leave them out")
    from tilestitch.codegen.cpu.target import parse_target
    from tilestitch.cost_model.records import RecordedModel, Records

    from .machine import machine_of

    with Records.open(os.fspath(path), frozen=True) as records:
        machines = records.machines()
        here = machines[0] if frozen and len(machines) == 1 else machine_of(parse_target(target), threads)
        if frozen and len(machines) != 1:
            raise OptionError(f"{path} has records of {len(machines)} machines; frozen ones are of one: export those")
        if here not in machines:
            raise OptionError(f"{path} has no records of this machine ({here}); measure some, or take them frozen")
        return RecordedModel.of((record for record in records if record.machine == here), model)
