"""Asks a worker to trace one step of a case."""

from ampbench.planning import PlannedCase
from ampbench.records.casts import CastPass, Tracing
from ampbench.records.measurements import Failure, Skip
from ampbench.records.requests import Request
from ampbench.records.runs import Settings
from ampbench.running.channel import Channel


def trace_case(
    channel: Channel, planned: PlannedCase, settings: Settings, tracing: Tracing
) -> CastPass | Failure | Skip:
    """Return what a fresh worker of `channel` saw of one step of the case, or why it saw nothing."""
    reply = channel.serve(
        Request(
            kind="casts",
            source=planned.source,
            case=planned.case,
            timeout_seconds=settings.timeout_seconds,
            memory_limit_bytes=settings.memory_limit_bytes,
            threads=settings.threads,
            seed=settings.seed,
            tracing=tracing,
        )
    )
    found = reply.casts or reply.failure or reply.skip
    assert found is not None
    return found
