"""Has worker processes measure what devices attain at best, a fresh one for each operation and dtype."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.labels import few
from ampbench.records.environments import DEVICES
from ampbench.records.requests import Request
from ampbench.records.runs import CEILINGS, Asked, Selection, Settings
from ampbench.records.studies import FP32, TF32, Ceiling
from ampbench.running.channel import Channel, OpenChannel, ServerChannel
from ampbench.running.passes import Seen, do_pieces
from ampbench.running.session import Prepared, check_same, default_memory_limit, opened_first
from ampbench.store import RunWriter, StoredRun
from ampbench.studied.ceilings.pieces import Piece, pieces_of, unfinished


@contextmanager
def prepare_ceilings(
    selection: Selection,
    settings: Settings,
    asked: Asked,
    resumed: StoredRun | None = None,
    open_channel: OpenChannel = ServerChannel,
) -> Iterator[Prepared]:
    """Open the session that measures ceilings, which has no cases: everything that can be wrong is raised here.

    With `resumed`, the run to go on with, whose selection, settings and `asked` these must be. Raises
    `UnknownNameError` for a device that there is not, `NothingToRunError` with the reasons where nothing can be
    measured, `UsageError` where `resumed` is of another environment.
    """
    for name in selection.devices:
        if name not in DEVICES:
            raise UnknownNameError("device", name, DEVICES)
    with opened_first(open_channel, settings.threads) as first:
        environment = first.environment
        if resumed is not None:
            check_same(resumed.header.environment, environment, resumed.header.run)
        if settings.memory_limit_bytes is None:
            settings = dataclasses.replace(settings, memory_limit_bytes=default_memory_limit())
        wanted = pieces_of(environment, selection.devices, asked)
        if all(piece.lacking for piece in wanted):
            why = few((piece.lacking for piece in wanted), len(wanted)) or f"copies in {TF32} are those in {FP32}"
            raise NothingToRunError(f"no ceiling can be measured here: {why}")
        yield Prepared(selection, settings, environment, [], first.open_channel)


def pieces(prepared: Prepared, asked: Asked, resumed: StoredRun | None = None) -> list[Piece]:
    """Return the ceilings to measure, or those that `resumed` lacks."""
    if resumed is not None:
        return unfinished(resumed)
    return pieces_of(prepared.environment, prepared.selection.devices, asked)


def measure_ceilings(
    prepared: Prepared,
    asked: Asked,
    writer: RunWriter,
    watch: Callable[[Piece, Seen | None], None],
    resumed: StoredRun | None = None,
) -> str:
    """Measure what is planned, as `do_pieces` does, and return how the session ended.

    A worker that does not live to answer leaves a ceiling with the reason.
    """

    def measure(channel: Channel, piece: Piece) -> Ceiling:
        return _measure(channel, piece, prepared, asked.seconds)

    return do_pieces(
        prepared.open_channel, ((piece, measure) for piece in pieces(prepared, asked, resumed)), writer, watch
    )


def _measure(channel: Channel, piece: Piece, prepared: Prepared, seconds: float) -> Ceiling:
    """Return a ceiling; one without anything attained has the reason."""
    settings = prepared.settings
    why = piece.lacking
    if not why:
        reply = channel.serve(
            Request(
                kind=CEILINGS,
                device=piece.device,
                operation=piece.operation,
                dtypes=[piece.dtype],
                seconds=seconds,
                threads=settings.threads,
                timeout_seconds=settings.timeout_seconds,
                memory_limit_bytes=settings.memory_limit_bytes,
            )
        )
        if reply.ceilings is not None:
            return reply.ceilings
        failure = reply.failure
        why = failure.said if failure else reply.problem or "the worker gave no ceiling"
    return Ceiling(
        device=piece.device,
        operation=piece.operation,
        dtype=piece.dtype,
        threads=settings.threads or prepared.environment.threads or 0,
        error=why,
    )
