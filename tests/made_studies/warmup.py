"""How many steps a case takes until its step time settles."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ampbench.core.precisions import PRECISIONS
from ampbench.core.statement import Severity, Statement, state
from ampbench.records import Share, StepSeconds
from ampbench.records.case import Case
from ampbench.records.wire import Task
from ampbench.show.charts import curves
from ampbench.show.document import Column
from ampbench.studies.study import Selects, Study, Table, asks


class WarmUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The first steps of a case: `samples` are the seconds of each, in their order.

    Every step from `settled` on, counted from 0, takes at most a `tolerance` (0-1) more than the fastest; None: not
    even the last step does.
    """

    case_id: str
    samples: list[StepSeconds]
    tolerance: Share
    settled: Annotated[int, Meta(ge=0, le=1000)] | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` where there is no step, or they settle after the last."""
        if (self.settled or 0) >= len(self.samples):
            raise ValueError("settles after its end")


class WarmUpAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To run the first `steps` steps of a case, and to call them settled within a `tolerance` (0-1) of the fastest."""

    steps: Annotated[int, asks("Steps of each case.", least=2, most=1000, metavar="N")] = 20
    tolerance: Annotated[float, asks("A settled step is so much slower.", least=0, most=1, metavar="SHARE")] = 0.2


class Warm(StrEnum):
    """Whether the steps of a case settled."""

    SETTLED = "warmup-settled"
    UNSETTLED = "warmup-unsettled"


def conclusions(_: Case, record: WarmUp) -> Iterator[Statement]:
    """Yield when the steps of a case settled."""
    facts = {"tolerance": record.tolerance, "fastest": min(record.samples)}
    if record.settled is None:
        yield state(Warm.UNSETTLED, steps=len(record.samples), **facts)
    else:
        yield state(Warm.SETTLED, "", Severity.INFO, steps=record.settled, **facts)


def do_warmup(work: Any, asked: WarmUpAsked) -> WarmUp:
    """Do the task "warmup": a worker's first steps of a case, each timed by itself."""
    from ampbench.worker.machine import precision_flags
    from ampbench.worker.step import build_step

    with precision_flags(PRECISIONS[work.case.precision]):
        step = build_step(work.workload, work.case, work.device)
        with step.mode():
            samples = [work.device.seconds(step.run, 1) for _ in range(asked.steps)]
    slow = [number for number, seconds in enumerate(samples) if seconds > min(samples) * (1 + asked.tolerance)]
    settled = max(slow, default=-1) + 1
    return WarmUp(
        case_id=work.case.case_id,
        samples=samples,
        tolerance=asked.tolerance,
        settled=settled if settled < len(samples) else None,
    )


Row = tuple[int, float]
COLUMNS: Sequence[Column[Row]] = (
    Column("step", lambda row: row[0], "step", "whole"),
    Column("seconds", lambda row: row[1], "time", "s"),
)
STUDY: Study[WarmUpAsked, WarmUp] = Study(
    kind="warmup",
    help="""\
Time the first steps of a case one by one, and say after how many the step time settles.

\b
Examples:
  ampbench study warmup model.py:make
  ampbench study warmup mlp --steps 40 --tolerance 0.1
""",
    doing="warming up",
    asked=WarmUpAsked,
    task=Task("warmup", WarmUpAsked, WarmUp, "ampbench.studies.warmup:do_warmup"),
    selects=Selects(phases=("inference",)),
    title="Warm-up",
    tables=(Table("steps", COLUMNS, lambda record: list(enumerate(record.samples, start=1)), "The first steps"),),
    conclusions=conclusions,
    charts=(
        curves(
            "studies-warmup",
            "The first steps",
            "time",
            "case",
            lambda record: [("step", record.samples)],
            unit="s",
            alt="A line that levels out has settled.",
        ),
    ),
)
