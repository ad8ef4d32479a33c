"""The explanation of casts: one step of each case, traced by a worker of its own, on fake tensors where need be."""

import dataclasses
from functools import partial
from typing import Any

from msgspec import structs

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.units import one_of
from ampbench.drive.pieces import Piece, Seen, ask_case, built_in_rows, plan_default_autocast, require_own_ops
from ampbench.drive.planning import PlannedCase
from ampbench.drive.servers import Channel
from ampbench.errors import UsageError
from ampbench.records.case import PATHS, Case, Environment
from ampbench.records.casts import AUTOGRAD, COMPILED, TRACED, By, CastPass, Tracing
from ampbench.records.kinds import CASTS
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import StoredRun
from ampbench.studies.study import (
    AUTOCAST_HELP,
    INFERENCE_HELP,
    SCALER_HELP,
    Given,
    Instrument,
    Option,
    Selects,
    Session,
)

HELP = """\
Trace one step of each case: every cast, of what, for which op, what it costs, what could be saved.

Without --phase, the step is one of inference. A device that is not here is stood in for by fake tensors: the casts
are seen, no hardware is. The run is stored: ampbench show RUN prints it again, with --by and --all.

\b
Examples:
  ampbench explain casts model.py:make
  ampbench explain casts mlp --phase training --check
  ampbench explain casts resnet50 --device cuda --by module
  ampbench explain casts decoder_lm --path compiled --format json
"""
TASK = Task(CASTS, Tracing, CastPass, "ampbench.instruments.casts.measure:do_casts", absent=True, flags=True)
GRAPHS = (COMPILED, TRACED)
"""The paths whose graphs can be read beside the eager step."""
WITH_SOURCES = (By.OP, By.CAST)
"""The tables that have a column for the line of code."""


def trace_case(
    channel: Channel, planned: PlannedCase, settings: Settings, tracing: Tracing
) -> CastPass | Failure | Skip:
    """Return what a fresh worker of `channel` saw of one step of the case, or why it saw nothing."""
    return ask_case(channel, planned, settings, TASK, tracing)


def graphs_of(planned: PlannedCase, selection: Selection) -> list[str]:
    """Return the graphs to read beside the eager step: of the paths selected, and autograd's in training."""
    paths = [path for path in dict.fromkeys(selection.paths) if path in GRAPHS]
    return [*paths, *([AUTOGRAD] if planned.case.phase == "training" else [])]


def _refined(selection: Selection, asked: Tracing) -> Selection:
    """Raise `UsageError` for the ops of another precision, and for one without a dtype to store inputs in."""
    require_own_ops(selection)
    for path in selection.paths:
        if path in PATHS and path not in ("eager", *GRAPHS):
            raise UsageError(f"explain casts reads the graphs of --path {one_of(GRAPHS)}, not that of {path}")
    for row in built_in_rows(selection) if asked.half_inputs else ():
        if not row.autocast:
            raise UsageError(
                f"--half-inputs stores inputs in the dtype that autocast casts to, and {row.name} runs without "
                "autocast: leave one of them out"
            )
    return selection


def _plan(
    selection: Selection, asked: Tracing, environment: Environment, channel: Channel, settings: Settings
) -> list[PlannedCase]:
    found = plan_default_autocast(selection, environment, channel, settings, absent_devices=True)
    if not asked.half_inputs:
        return found
    return [dataclasses.replace(planned, case=_with_half_inputs(planned.case)) for planned in found]


def _with_half_inputs(case: Case) -> Case:
    dtype = PRECISIONS[case.precision].autocast
    return structs.replace(case, input_dtype=SHORT_DTYPES[dtype]) if dtype else case


def _trace(session: Session[Tracing], channel: Channel, piece: Piece) -> Seen:
    asked = structs.replace(session.asked, graphs=graphs_of(piece.planned, session.prepared.selection))
    return trace_case(channel, piece.planned, session.prepared.settings, asked)


def _showing(given: Given, format: str) -> dict[str, Any]:
    """Return which table to print; `UsageError` where it has no lines of code and they are asked for."""
    by = given.values["by"]
    if not given.values["sources"] or format == "json":
        return {"by": by}
    told = WITH_SOURCES if format != "csv" else (By.OP,)
    if by not in (None, *told):
        raise UsageError(f"--sources is told by --by {' and --by '.join(told)}: --by {by} has no lines of code")
    return {"by": by or By.OP}


def _noted(stored: StoredRun, given: Given) -> list[str]:
    """Return of which cases no line of code was found."""
    if not given.values["sources"]:
        return []
    return [
        f"{case_id}: no line of code outside torch and ampbench asked for an op"
        for case_id, found in stored.of(CastPass).items()
        if not any(operation.source for operation in found.trace.ops)
    ]


INSTRUMENT: Instrument[Tracing] = Instrument(
    kind=CASTS,
    help=HELP,
    doing="tracing",
    options=(
        Option(
            name="half_inputs", default=False, help="Floating inputs are stored in the dtype that autocast casts to."
        ),
        Option(
            name="by", default=None, type=By, shown=True,
            help="Which table. Default: the summary; for CSV: a row per cast.",
        ),
        Option(name="sources", default=False, help="Find each op's line of code; implies --by op."),
        Option(name="check", default=False, help="Make the changes that save casts, and measure what they save."),
    ),
    selects=Selects(
        question="explain the casts",
        precision=AUTOCAST_HELP,
        phase=INFERENCE_HELP,
        path="compiled or traced: this graph, too, beside eager.",
        scaler=SCALER_HELP,
        phases=("inference",),
        eager=False,
    ),
    refined=_refined,
    plan=_plan,
    work=lambda session: partial(_trace, session),
    showing=_showing,
    noted=_noted,
)  # fmt: skip
