"""What follows from the first steps of a case, in sentences."""

from ampbench.core.units import counted, format_seconds, format_share
from ampbench.instruments.warmup.records import WarmUp


def warmup_said(found: WarmUp) -> list[str]:
    """Return when the steps of a case settled: sentences without a full stop."""
    near = f"within {format_share(found.tolerance)} of the fastest, {format_seconds(min(found.samples))}"
    if found.settled is None:
        return [f"not settled after {counted(len(found.samples), 'step')}: the last one is not {near}"]
    return [f"settled after {counted(found.settled, 'step')}: all later ones are {near}"]
