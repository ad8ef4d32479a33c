"""The op that makes the first value that is not finite in a step, which may begin from a checkpoint."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import structs

from ampbench.core.statement import Statement, state
from ampbench.core.units import counted
from ampbench.errors import UsageError
from ampbench.records import Positive, Steps
from ampbench.records.case import Case
from ampbench.records.kinds import NONFINITE
from ampbench.records.ranges import FirstNonfinite
from ampbench.records.run import Selection
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.studies.study import Selects, Session, Study, Table, asks, info


class NonfiniteAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Steps to take from the weights in the file `state` ("": the workload's own)."""

    state: Annotated[
        str, asks("Begin from these weights: a state dict or a checkpoint that has one.", metavar="FILE")
    ] = ""
    steps: Annotated[int, asks("The most steps. 0: one for each batch.", metavar="N", least=0, most=10_000)] = 0


class Replay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Steps of a case up to the `first` value that is not finite; `nonfinite` is the first step with such a result."""

    case_id: str
    state: str = ""
    steps: Steps
    first: FirstNonfinite | None = None
    nonfinite: Positive | None = None
    notes: list[str] = []


class Replayed(StrEnum):
    """How the steps ended."""

    FIRST = "nonfinite-first"
    RESULT = "nonfinite-result"
    """A result is not finite, and no op is at fault: weights or inputs are not finite, or a logarithm of 0 is -inf."""
    FINITE = "nonfinite-none"


def conclusions(_: Case, record: Replay) -> Iterator[Statement]:
    """Yield the first op, or that all values are finite."""
    if record.first is not None:
        yield state(Replayed.FIRST, first=str(record.first), line=next(reversed(record.first.frames), None))
    elif record.nonfinite is not None:
        yield state(Replayed.RESULT, step=record.nonfinite)
    else:
        yield info(Replayed.FINITE, steps=record.steps)


COLUMNS: Sequence[Column[FirstNonfinite]] = [
    Column(name, attrgetter(name)) for name in ("operation", "module", "phase", "step", "inputs_largest", "parameter")
]


def _refined(selection: Selection, asked: NonfiniteAsked) -> Selection:
    if asked.state and not Path(asked.state).is_file():
        raise UsageError(f"--state {asked.state}: no such file")
    return selection


def _request(session: Session[NonfiniteAsked], _: object) -> NonfiniteAsked:
    return structs.replace(session.asked, state=session.asked.state and str(Path(session.asked.state).resolve()))


STUDY: Study[NonfiniteAsked, Replay] = Study(
    kind=NONFINITE,
    help="""\
Find the op that makes the first NaN or infinity of a step, with its module and your line of code.

A training that broke is replayed from its last good checkpoint: --state takes its weights. The run is stored:
ampbench show RUN prints it again.

\b
Examples:
  ampbench explain nonfinite model.py:make --state checkpoint.pt
  ampbench explain nonfinite model.py:make --precision fp16 --steps 100
""",
    doing="replaying",
    asked=NonfiniteAsked,
    task=Task(NONFINITE, NonfiniteAsked, Replay, "ampbench.studies.headroom_measure:do_nonfinite"),
    selects=Selects(),
    refined=_refined,
    request=_request,
    title="First value that is not finite",
    heading=lambda record: counted(record.steps, "step"),
    tables=(
        Table("first", COLUMNS, lambda record: [record.first] if record.first else []),
        Table("", (Column("line", str, "line"),), lambda record: record.first.frames[:-1] if record.first else [],
              "Your code", "the lines that led there, the outermost first"),
    ),
    conclusions=conclusions,
)  # fmt: skip
