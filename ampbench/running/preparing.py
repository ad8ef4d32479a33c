"""What planning has in common for all that explains cases: named workloads, a first server, default precisions."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from ampbench.errors import NothingToRunError, UnknownNameError, UsageError
from ampbench.planning import PlannedCase, make_plan
from ampbench.precisions import AUTOCAST, BUILT_IN, Precision, default_autocast, find_precision
from ampbench.records.cases import WorkloadSource
from ampbench.records.environments import Environment
from ampbench.records.runs import Selection, Settings, verb_of
from ampbench.running.channel import Channel, OpenChannel, ServerChannel
from ampbench.running.session import (
    Prepared,
    check_same,
    check_same_cases,
    default_memory_limit,
    describer,
    opened_first,
    preload_modules,
)
from ampbench.store import StoredRun
from ampbench.units import one_of

Plan = Callable[[Environment, Channel, Settings], list[PlannedCase]]
"""Plans the cases on the machine of an environment; the channel builds users' workloads."""


@contextmanager
def prepared_session(
    selection: Selection,
    settings: Settings,
    sources: Sequence[WorkloadSource],
    plan: Plan,
    open_channel: OpenChannel | None = None,
    *,
    own_precisions: bool = False,
) -> Iterator[Prepared]:
    """Open a first server, have `plan` plan with it, and yield the session; the server ends with the context.

    Raises `UsageError` for a precision selected that is a user's own, unless it is one for `own_precisions`.
    """
    open_new: OpenChannel = open_channel or (lambda: ServerChannel(preload=preload_modules(selection, list(sources))))
    with opened_first(open_new, settings.threads) as first:
        if settings.memory_limit_bytes is None:
            settings = dataclasses.replace(settings, memory_limit_bytes=default_memory_limit())
        planned = plan(first.environment, first.channel, settings)
        if not own_precisions:
            _refuse_own(selection)
        yield Prepared(
            selection=selection,
            settings=settings,
            environment=first.environment,
            plan=planned,
            open_channel=first.open_channel,
        )


def resumed_plan(
    resumed: StoredRun, environment: Environment, found: list[PlannedCase], left: Collection[str]
) -> list[PlannedCase]:
    """Return those of the cases `found` now that a run has `left`, by their ids.

    Raises `UsageError` where the run was begun in another environment, or with other cases than are found now.
    """
    check_same(resumed.header.environment, environment, resumed.header.run)
    check_same_cases(resumed, found)
    return [planned for planned in found if planned.case.case_id in left]


def require_named(selection: Selection, explains: str, question: str) -> None:
    """Raise `UsageError`, which asks the `question`, unless a workload is named for a kind of run."""
    if not selection.workloads:
        raise UsageError(
            f"{question} of which workload? Name one, as in `ampbench {verb_of(explains)} mlp` or "
            f"`ampbench {verb_of(explains)} model.py:make`; ampbench list workloads shows what there is"
        )


def require_eager(selection: Selection, verb: str) -> None:
    """Raise `UsageError` for any path but eager: in a compiled or traced network no module runs by itself."""
    others = [path for path in selection.paths if path != "eager"]
    if others:
        raise UsageError(f"{verb} looks into the modules of the eager path, which a {others[0]} network does not run")


def require_among(selection: Selection, allowed: Sequence[str], why: str) -> None:
    """Raise `UsageError` unless all precisions selected are `allowed`; `why` says of "{name}" what is amiss with it.

    Those that may be a user's own are passed over, here as in what follows: `prepared_session` knows them.
    """
    for row in built_in_rows(selection):
        if row.same_ops in allowed:
            require_own_ops(selection)
        if row.name not in allowed:
            raise UsageError(f"{why.format(name=row.name)}: give {one_of(allowed)}")


def require_own_ops(selection: Selection) -> None:
    """Raise `UsageError` for a precision whose ops are those of another, which is the one to ask about."""
    for row in built_in_rows(selection):
        if row.same_ops:
            raise UsageError(f"{row.name} runs the ops of {row.same_ops}, with another optimizer step: give that")


def built_in_rows(selection: Selection) -> list[Precision]:
    """Return the rows of those precisions selected that are ampbench's own.

    Which names are a user's own is not known before his file is read, once `check_selection` let them pass.
    """
    found = []
    for name in selection.precisions:
        with suppress(UnknownNameError):
            found.append(find_precision(name))
    return [row for row in found if row.name in BUILT_IN]


def _refuse_own(selection: Selection) -> None:
    """Raise `UsageError` for a precision that is a user's own, or nobody's, now that all of them are known."""
    for row in map(find_precision, selection.precisions):
        if row.name not in BUILT_IN:
            raise UsageError(
                f"{row.name} is a precision of your own, which ampbench run and ampbench study convergence measure: "
                "this asks about ampbench's own alone"
            )


def plan_default_autocast(
    selection: Selection,
    environment: Environment,
    channel: Channel,
    settings: Settings,
    *,
    absent_devices: bool = False,
) -> list[PlannedCase]:
    """Return the eager cases of `selection`; without precisions, those of autocast to each device's default dtype.

    With `absent_devices`, that its device is absent skips no case. Raises what `make_plan` raises.
    """
    precisions = selection.precisions or AUTOCAST
    asked = dataclasses.replace(selection, precisions=precisions, paths=[])
    plan = make_plan(asked, environment, describer(channel, settings), absent_devices=absent_devices)
    if selection.precisions:
        return plan
    chosen = [planned for planned in plan if _is_default(planned, environment)]
    if not chosen:
        raise NothingToRunError(
            f"nothing is selected: -k {selection.keyword!r} matches no case in the device's default autocast dtype; "
            "name another with --precision"
        )
    return chosen


def _is_default(planned: PlannedCase, environment: Environment) -> bool:
    """Return whether autocast, unless told otherwise, uses the dtype of this case on its device."""
    device = environment.device(planned.case.device)
    return device is None or planned.case.precision == default_autocast(device.autocast_dtype)
