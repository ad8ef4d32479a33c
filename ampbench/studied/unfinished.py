"""What is left to do in a run whose study takes each case as one piece: of scopes and of input storage."""

from ampbench.errors import UsageError
from ampbench.records.runs import Asked
from ampbench.store import StoredRun


def unfinished(stored: StoredRun) -> list[str]:
    """Return the ids of the cases of a run about which it says nothing, in the order of the run."""
    ended = {*stored.explained, *stored.failures, *stored.skips}
    return [case_id for case_id in stored.cases if case_id not in ended]


def asked_of(stored: StoredRun) -> Asked:
    """Return what a run was asked for; `UsageError` where it does not say how long to time a case."""
    asked = stored.header.asked
    if asked is None or asked.seconds <= 0:
        raise UsageError(f"run {stored.header.run} does not say how long to time a case: begin a new one")
    return asked
