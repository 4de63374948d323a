"""Reader of plans to be replayed, shown or compared."""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan import StitchPlan
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.jsonfields import parse_json

from .errors import OptionError


def load_plans(plan: StitchPlan | Sequence[StitchPlan] | str | os.PathLike[str]) -> list[StitchPlan]:
    """Return the plans to replay, one per specialisation, from plan objects, or from a file with a plan or a list of
    them.
    """
    if isinstance(plan, StitchPlan):
        return [plan]
    if isinstance(plan, str | os.PathLike) and os.fspath(plan):
        return read_plans(Path(plan))
    if not isinstance(plan, list | tuple) or not plan or not all(isinstance(each, StitchPlan) for each in plan):
        raise OptionError(f"plan is {plan!r}, no StitchPlan; give one or several, or the path of a file")
    return list(plan)


def read_plans(path: Path) -> list[StitchPlan]:
    """Return the plans of an artifact, or of a file with a plan or a list of them.

    Raises PlanError, naming the file, for anything else.
    """
    data = _read_json(path)
    if data == []:
        raise PlanError(f"{path} holds no plan; give the plan.json of an artifact")
    return [StitchPlan.from_json(item, str(path)) for item in (data if isinstance(data, list) else [data])]


def _read_json(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        return read_artifact(path).plan
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}; give the plan.json of an artifact") from error
    except ValueError as error:
        raise PlanError(f"{path} is no JSON text: {error}; give the plan.json of an artifact") from None
