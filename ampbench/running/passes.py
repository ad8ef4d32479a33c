"""Has worker processes explain cases, a fresh one for each, and stores what they saw."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ampbench.planning import PlannedCase
from ampbench.records.cases import Case
from ampbench.records.measurements import Failure, Skip
from ampbench.records.requests import Reply, Request
from ampbench.records.runs import Explanation, Footer, Settings, Study
from ampbench.running.channel import Channel, OpenChannel, Renewing
from ampbench.running.session import Prepared, now
from ampbench.store import RunWriter

Piece = TypeVar("Piece")
"""What is worked on by itself and may come up several times: a case, a ceiling."""

Seen = Explanation | Study | Failure | Skip
"""What comes of a piece of work."""

Explain = Callable[[Channel, PlannedCase], Seen]
"""Has a case explained on a channel, and returns what came of it; what it stores meanwhile is its own affair."""

Watch = Callable[[PlannedCase, Seen | None], None]
"""Told of each case twice: before it is explained (None) and after, before what was seen is stored."""


def request_for(planned: PlannedCase, settings: Settings, kind: str, **fields: Any) -> Request:
    """Return the request of `kind` for a case, with further fields of it."""
    return Request(
        kind=kind,
        source=planned.source,
        case=planned.case,
        timeout_seconds=settings.timeout_seconds,
        memory_limit_bytes=settings.memory_limit_bytes,
        threads=settings.threads,
        seed=settings.seed,
        keep_flags=settings.keep_flags,
        **fields,
    )


def ended_by(reply: Reply, case: Case, stage: str) -> Failure | Skip:
    """Return how a reply without an explanation of a case ended: as it says, or as one of an older ampbench does."""
    why = reply.problem or f"the worker gave no {stage}"
    message = Failure(case_id=case.case_id, stage=stage, cause="exception", message=why)
    return reply.failure or reply.skip or message


def explain_cases(prepared: Prepared, explain: Explain, writer: RunWriter, watch: Watch) -> str:
    """Have what is planned explained, each case by `explain`, as `explain_pieces` does."""
    pieces = [(planned, explain) for planned in prepared.plan if not planned.skip]
    return explain_pieces(prepared, pieces, writer, watch)


def explain_pieces(
    prepared: Prepared, pieces: Iterable[tuple[PlannedCase, Explain]], writer: RunWriter, watch: Watch
) -> str:
    """Have each piece of work on a case done, as `do_pieces` does, and return how the session ended.

    Pieces of a case that failed or cannot run are passed over.
    """
    gone: set[str] = set()

    def noted(explain: Explain) -> Explain:
        def explained(channel: Channel, planned: PlannedCase) -> Seen:
            found = explain(channel, planned)
            if isinstance(found, Failure | Skip):
                gone.add(planned.case.case_id)
            return found

        return explained

    left = ((planned, noted(explain)) for planned, explain in pieces if planned.case.case_id not in gone)
    return do_pieces(prepared.open_channel, left, writer, watch)


def do_pieces(
    open_channel: OpenChannel,
    pieces: Iterable[tuple[Piece, Callable[[Channel, Piece], Seen]]],
    writer: RunWriter,
    watch: Callable[[Piece, Seen | None], None],
) -> str:
    """Have each piece of work done by what stands beside it, every entry to `writer` at once; return how it ended.

    `watch` is told of each piece twice, as `Watch` is of a case. A server is opened for the first piece that asks one;
    what a killed worker leaves unanswered is asked once more, as `Renewing` does. An interruption ends the session with
    a footer that says so; nothing seen is lost.
    """
    ended = "interrupted"
    channel = Renewing(open_channel)
    try:
        for piece, do in pieces:
            watch(piece, None)
            found = do(channel, piece)
            watch(piece, found)
            writer.append(found)
        ended = "complete"
    except KeyboardInterrupt:
        pass
    finally:
        channel.close()
        writer.append(Footer(ended=ended, finished_at=now()))
    return ended
