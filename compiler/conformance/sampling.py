"""A deterministic sample of the cases, spread over operators and element types."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from tilestitch.compiler.conformance.cases import Case

Class = tuple[str, tuple[int, ...]]


def class_of(case: Case) -> Class:
    """Return the operators of a case, or its name if it is a large model, and its element types."""
    return case.operators or case.name, case.element_types


def sample(cases: Sequence[Case], count: int) -> list[Case]:
    """Return COUNT of CASES, or all if there are fewer, in their order.

    Cases with the same operators on the same types of elements form a class. One of every class is taken, then a second
    of every class that has one, and so on; in a class, and among the classes at the end, the hash of the names decides.
    """
    classes: dict[Class, list[Case]] = defaultdict(list)
    for case in sorted(cases, key=_chance):
        classes[class_of(case)].append(case)
    rounds = zip_longest(*classes.values())
    chosen = [case for one_of_each in rounds for case in one_of_each if case is not None][:count]
    names = {(case.kind, case.name) for case in chosen}
    return [case for case in cases if (case.kind, case.name) in names]


def _chance(case: Case) -> str:
    return hashlib.sha256(f"{case.kind}/{case.name}".encode()).hexdigest()
