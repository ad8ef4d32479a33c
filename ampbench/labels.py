"""Cases that are shown together: short names that tell them apart, what they share, and what became of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ampbench.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.records.cases import Case

NOT_REACHED = "not reached before the run ended"
"""What became of a case of which a run says nothing."""
NOT_MEASURED, OUT_OF_TIME = "not measured yet", "not reached within the time given"
"""What became of a case that --resume may still measure."""


def case_labels(cases: Iterable[Case], *, precision: bool = True) -> dict[str, str]:
    """Return a short name for each case by its id: workload and precision, and what else tells the cases apart.

    Without the `precision` and its scaler it is a name for tables in which those have a column of their own.
    """
    known = {case.case_id: case for case in cases}
    seen: dict[tuple[str, ...], set[Any]] = {}
    for case in known.values():
        for where, value in _traits(case).items():
            seen.setdefault(where, set()).add(value)
    labels = {}
    for case_id, case in known.items():
        telling = {where[-1]: value for where, value in _traits(case).items() if len(seen[where]) > 1}
        parameters = [f"{name}={telling[name]}" for name in sorted(case.parameters) if name in telling]
        parts = [f"{case.workload}[{','.join(parameters)}]" if parameters else case.workload]
        if "batch_size" in telling:
            parts.append("no batch" if case.batch_size is None else f"b{case.batch_size}")
        parts += [case.memory_format] if "memory_format" in telling else []
        parts += [case.precision] if precision else []
        parts += [telling[name] for name in ("device", "phase", "path") if name in telling]
        parts += [f"in-{case.input_dtype}"] if "input_dtype" in telling else []
        parts += ["no scaler"] if precision and not case.scaler else []
        labels[case_id] = " ".join(parts)
    return labels


def told_apart(labels: Sequence[str], runs: Iterable[str]) -> list[str]:
    """Return labels, each with its run where others are the same: "mlp fp32 · before"."""
    counts = Counter(labels)
    return [f"{label} · {run}" if counts[label] > 1 else label for label, run in zip(labels, runs, strict=True)]


def case_title(case: Case) -> str:
    """Return what a case is, in one line."""
    parts = [case.group, case.precision, case.phase, case.device, *([] if case.scaler else ["no scaler"])]
    if case.precision in PRECISIONS and case.input_dtype != SHORT_DTYPES[PRECISIONS[case.precision].storage]:
        parts.append(f"inputs in {case.input_dtype}")
    return " · ".join(parts)


def common_traits(cases: Iterable[Case]) -> str:
    """Return what all cases share and their labels leave out: `inference · cpu · eager`."""
    values = [
        {getattr(case, name) for case in every} for every in [list(cases)] for name in ("phase", "device", "path")
    ]
    return " · ".join(next(iter(one)) for one in values if len(one) == 1)


def few(names: Iterable[str], most: int = 3) -> str:
    """Return distinct names in a row, no more than `most`, and how many others there are."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more:,} more" if more > 0 else "")


def outcome_said(outcome: str, reason: str, what: str = "") -> str:
    """Return what became of cases without numbers: "skipped: cpu has no tf32", "missing: not measured yet".

    `what` they are stands before the reason.
    """
    word = "missing" if reason in (NOT_MEASURED, OUT_OF_TIME) else outcome
    return ": ".join([word, *([what] if what else []), reason])


def outcomes_said(counts: Mapping[str, int]) -> str:
    """Return how many cases have each outcome, as "55 ok, 11 skipped"."""
    return ", ".join(f"{counts[name]:,} {name}" for name in ("ok", "failed", "skipped") if counts.get(name))


def _traits(case: Case) -> dict[tuple[str, ...], Any]:
    """Return what may tell a case from others: each trait by its name, and before it what the others must share."""
    own = (case.workload,)
    parameters = {(*own, name): value for name, value in case.parameters.items()}
    general = {(name,): getattr(case, name) for name in ("device", "phase", "path")}
    return (
        parameters
        | general
        | {
            (*own, "batch_size"): case.batch_size,
            (*own, "memory_format"): case.memory_format,
            (*own, case.precision, "input_dtype"): case.input_dtype,
        }
    )
