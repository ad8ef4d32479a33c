"""Has worker processes explain cases, a fresh one for each, and stores what they saw."""

from collections.abc import Callable, Iterable
from typing import Any

from ampbench.planning import PlannedCase
from ampbench.records.cases import Case
from ampbench.records.measurements import Failure, Skip
from ampbench.records.requests import Reply, Request
from ampbench.records.runs import Explanation, Footer, Settings, Study
from ampbench.running.channel import Channel
from ampbench.running.session import Prepared, now
from ampbench.store import RunWriter

Seen = Explanation | Study | Failure | Skip
"""What comes of a case."""

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
        **fields,
    )


def ended_by(reply: Reply, case: Case, stage: str) -> Failure | Skip:
    """Return how a reply without an explanation of a case ended: as it says, or as one of an older ampbench does."""
    why = reply.problem or f"the worker gave no {stage}"
    message = Failure(case_id=case.case_id, stage=stage, cause="exception", message=why)
    return reply.failure or reply.skip or message


class _Watched:
    """A channel that knows whether what served it was `killed`."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self.killed = False

    def serve(self, request: Request) -> Reply:
        reply = self._channel.serve(request)
        self.killed |= reply.failure is not None and reply.failure.cause == "killed"
        return reply

    def close(self) -> None:
        self._channel.close()


def explain_cases(prepared: Prepared, explain: Explain, writer: RunWriter, watch: Watch) -> str:
    """Have what is planned explained, each case by `explain`, as `explain_pieces` does."""
    pieces = [(planned, explain) for planned in prepared.plan if not planned.skip]
    return explain_pieces(prepared, pieces, writer, watch)


def explain_pieces(
    prepared: Prepared, pieces: Iterable[tuple[PlannedCase, Explain]], writer: RunWriter, watch: Watch
) -> str:
    """Have each piece of work on a case done, every entry to `writer` at once, and return how the session ended.

    Pieces of a case that failed or cannot run are passed over. A server whose worker was killed is replaced. An
    interruption ends the session with a footer that says so; nothing seen is lost.
    """
    ended = "interrupted"
    channel: _Watched | None = None
    gone: set[str] = set()
    try:
        for planned, explain in pieces:
            if planned.case.case_id in gone:
                continue
            watch(planned, None)
            if channel is None:
                channel = _Watched(prepared.open_channel())
            found = explain(channel, planned)
            watch(planned, found)
            writer.append(found)
            if isinstance(found, Failure | Skip):
                gone.add(planned.case.case_id)
            if channel.killed:
                channel.close()
                channel = None
        ended = "complete"
    except KeyboardInterrupt:
        pass
    finally:
        if channel is not None:
            channel.close()
        writer.append(Footer(ended=ended, finished_at=now()))
    return ended
