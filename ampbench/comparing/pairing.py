"""Which case of one run is compared with which of the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.errors import UsageError
from ampbench.records.cases import Case
from ampbench.records.runs import Header

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "precision": ("precision", "input_dtype", "scaler"),
    "scaler": ("scaler",),
    "path": ("path",),
    "memory_format": ("memory_format",),
    "batch_size": ("batch_size",),
}
"""What of a case a setting of an arm decides; a precision also decides how inputs are stored and what GradScaler does.

Every other setting is the name of a parameter, or says nothing about cases.
"""
_KEY = ("workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format", "scaler")


@dataclass(frozen=True, slots=True)
class Pair:
    """A case of the baseline and the one of the candidate that is compared with it, with their ids."""

    baseline: Case
    candidate: Case
    baseline_id: str
    candidate_id: str


@dataclass(frozen=True, slots=True)
class Paired:
    """The pairs, in the order of the baseline, and the ids of the cases that only one side has."""

    pairs: Sequence[Pair]
    only_baseline: Sequence[str]
    only_candidate: Sequence[str]


def arm_settings(*headers: Header) -> dict[str, str]:
    """Return the settings that the arms of the runs were given, by name; of a name given twice, the last value."""
    found: dict[str, str] = {}
    for header in headers:
        if header.arm is not None:
            found |= header.arm.settings
    return found


def pair_cases(baseline: Iterable[Case], candidate: Iterable[Case], settings: Iterable[str]) -> Paired:
    """Return which cases are compared: those with one id or, where arms have `settings`, that differ in those alone.

    Raises `UsageError` where that leaves a choice.
    """
    left_out = list(settings)
    ours, theirs = _by_key("baseline", baseline, left_out), _by_key("candidate", candidate, left_out)
    return Paired(
        [Pair(case, theirs[key][0], id, theirs[key][1]) for key, (case, id) in ours.items() if key in theirs],
        [id for key, (_, id) in ours.items() if key not in theirs],
        [id for key, (_, id) in theirs.items() if key not in ours],
    )


def _by_key(side: str, cases: Iterable[Case], left_out: Sequence[str]) -> dict[Any, tuple[Case, str]]:
    """Return cases and their ids by what is left of them without the settings `left_out`."""
    found: dict[Any, tuple[Case, str]] = {}
    for case in cases:
        case_id = case.case_id
        _, other = found.setdefault(_key(case, left_out) if left_out else case_id, (case, case_id))
        if other != case_id:
            raise UsageError(
                f"the {side} has {other} and {case_id}, which differ only in what an arm sets "
                f"({', '.join(left_out)}), so it is not clear which to compare: select one of them when measuring"
            )
    return found


def _key(case: Case, left_out: Sequence[str]) -> tuple[Any, ...]:
    own = {name.removeprefix(f"{case.workload}.") for name in left_out}
    fields = {field for name in own for field in _FIELDS.get(name, ())}
    parameters = tuple(sorted((name, value) for name, value in case.parameters.items() if name not in own))
    return (*(getattr(case, name) for name in _KEY if name not in fields), parameters)
