"""What a study was asked for, and what is left to do in a run that takes each case as a whole, searches among them."""

from ampbench.errors import UsageError
from ampbench.records.runs import Asked
from ampbench.store import StoredRun


def unfinished(stored: StoredRun) -> list[str]:
    """Return the ids of the cases of a run about which it says nothing, in the order of the run."""
    ended = {*stored.explained, *stored.given_up}
    return [case_id for case_id in stored.cases if case_id not in ended]


def asked_of(stored: StoredRun, *needed: str) -> Asked:
    """Return what a study was asked for, to go on with it; `UsageError` where its run does not say what is `needed`.

    That are names of fields of `Asked`.
    """
    asked = stored.header.asked
    if asked is None or not all(getattr(asked, name) for name in needed):
        raise UsageError(f"run {stored.header.run} does not say what it was asked for: begin a new one")
    return asked
