"""Rows of a run's frame: their values, groups and names."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampbench.core import by_key
from ampbench.core.metrics import LATER
from ampbench.core.precisions import BASELINE, DEFAULT, rank
from ampbench.core.statement import Answer, Statement
from ampbench.records.changes import Status, Verdict

if TYPE_CHECKING:
    from ampbench.records.run import Header
    from ampbench.store import StoredRun

Row = Mapping[str, Any]
"""One row of the frame: its columns by name, None or NaN where undefined."""

TODAYS = (BASELINE, DEFAULT)
"""The precisions of a program without any change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The subject of one table and one line of advice: all traits of a case but its precision."""

    workload: str
    parameters: str
    batch_size: int | None
    memory_format: str
    sdpa: str = ""
    device: str
    phase: str
    path: str
    recipe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """The case to take of a table, and why: a statement with an `Answer` or a `Flaw` as its code.

    `verdicts` are on its cases, in the order of the precisions. `taken` is the case to take, possibly today's (None: no
    advice), `passed` a faster or smaller case that is not ok (None: there is none). `hints` are further advice.
    """

    group: Group
    statement: Statement
    verdicts: Sequence[Verdict]
    taken: Verdict | None = None
    passed: Verdict | None = None
    hints: Sequence[Statement] = ()

    @property
    def precision(self) -> str | None:
        """The precision to take; None without advice."""
        return self.taken.precision if self.taken else None

    @property
    def case_id(self) -> str | None:
        """The case to take; a precision may have several, with other inputs or without a scaler."""
        return self.taken.case_id if self.taken else None

    @property
    def certain(self) -> bool:
        """Whether more rounds or a quieter machine cannot change the answer."""
        return self.statement.code is not Answer.UNCERTAIN and "looks" not in self.statement.facts


def grouped(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    """Return the rows by group, groups in order of appearance, rows in the order of the table of precisions."""
    groups = by_key(rows, group_of)
    for members in groups.values():
        members.sort(key=lambda row: rank(row["precision"]))
    return groups


def group_of(row: Row) -> Group:
    """Return the group of a row."""
    batch_size = number(row["batch_size"])
    return Group(
        workload=row["workload"],
        parameters=row["parameters"],
        batch_size=None if batch_size is None else int(batch_size),
        memory_format=row["memory_format"],
        device=row["device"],
        phase=row["phase"],
        path=row["path"],
        sdpa=row.get("sdpa") or "",
        recipe=row.get("recipe") or "",
    )


def with_verdicts(rows: Iterable[Row], verdicts: Mapping[str, Verdict]) -> list[Row]:
    """Return rows with the columns of their cases' verdicts (`VERDICT_COLUMNS`)."""
    return [{**row, **verdicts[row["case_id"]].columns()} for row in rows]


def is_wrong(row: Row) -> bool:
    """Return whether a row that was measured is refused or undecided."""
    return row["outcome"] == "ok" and row.get("verdict") in (Status.REFUSED, Status.UNDECIDED)


def taken_of(rows: Iterable[Row]) -> Row | None:
    """Return the row of a table to take; None without advice."""
    return next((row for row in rows if row.get("taken")), None)


def passed_over(rows: Sequence[Row]) -> list[Row]:
    """Return the refused or undecided rows of a table that are faster or smaller than the taken row, fastest first.

    Without advice, rows are compared with today's precision.
    """
    today = sorted(
        (row for row in rows if row.get("verdict") == Status.BASELINE), key=lambda row: row["precision"] != DEFAULT
    )
    taken = taken_of(rows) or next(iter(today), None)
    if taken is None:
        return []

    def less(row: Row, column: str) -> bool:
        value, held = number(row.get(column)), number(taken.get(column))
        return value is not None and held is not None and value < held

    wrong = [row for row in rows if is_wrong(row)]
    passed = [row for row in wrong if less(row, "seconds_median") or less(row, "peak_memory_bytes")]
    return sorted(passed, key=lambda row: number(row["seconds_median"]) or math.inf)


def described(group: Group, place: bool = True) -> str:
    """Return the traits of a group without its workload: `batch 8 · inference · cpu · eager · classes=1000 image=224`.

    Without its `place` phase, device and path are left out.
    """
    parts = [] if group.batch_size is None else [f"batch {group.batch_size}"]
    parts += [group.phase, group.device, group.path] if place else []
    parts += [] if group.memory_format == "contiguous" else [group.memory_format]
    parts += [f"recipe {group.recipe.replace(',', ' ')}"] if group.recipe else []
    parts += [f"sdpa {group.sdpa}"] if group.sdpa else []
    parts += [group.parameters.replace(",", " ")] if group.parameters else []
    return " · ".join(parts)


def number(value: Any) -> float | None:
    """Return the value of a numeric cell, None where it is null or NaN (in whatever form pandas gives it)."""
    if type(value) is float:  # nearly all are, and a page asks a million times
        return None if math.isnan(value) else value
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return None
    result = float(value)
    return None if math.isnan(result) else result


def run_name(run: "StoredRun") -> str:
    """Return the name of a run on a page: its label, else its id."""
    return run.header.label or run.header.run


def place_of(header: "Header") -> tuple[str, str]:
    """Return the host and the torch version of a run."""
    return header.environment.host, header.environment.torch_version


def judged_error(row: Row) -> float | None:
    """Return the judged error of a row: of its worst output, where outputs were measured one by one."""
    worst = number(row.get("output_worst_rel_l2"))
    return number(row["output_rel_l2"]) if worst is None else worst


def deciding_error(row: Row) -> float | None:
    """Return the judged error of the late place of a training; without one, of the first weights."""
    late = (number(row.get(f"{name}{LATER}")) for name in ("output_worst_rel_l2", "output_rel_l2"))
    return next((error for error in late if error is not None), judged_error(row))


def precision_label(row: Row) -> str:
    """Return a row's precision as people read it: "fp16_autocast (no scaler)" where GradScaler was taken out.

    Only the case's id shows that.
    """
    name: str = row["precision"]
    return f"{name} (no scaler)" if row["case_id"].endswith("/no-scaler") else name
