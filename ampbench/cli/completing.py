"""What a shell offers for a value when Tab is pressed: names known without torch, of runs those in `--results`.

A completer returns names, with what is said of each where shells show that; typer keeps those that begin with what is
typed. Where none does, a shell offers files.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import typer

from ampbench.core.precisions import PRECISIONS
from ampbench.core.recipes import OPTIMIZERS, RECIPES
from ampbench.errors import AmpbenchError
from ampbench.records.case import COMPILE_MODES, DEVICES, PATHS, PHASES, SDPA, TORCHS_CHOICE
from ampbench.records.run import LATEST

Offers = list[tuple[str, str]]


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the ids of the runs in the results folder, and their last parts where none begins with what is typed."""
    from ampbench.store import list_runs, run_id

    found: list[str] = []
    with suppress(AmpbenchError, OSError):  # no folder, or none that can be read
        found = [run_id(path) for path in list_runs(context.params.get("results") or Path("results"))]
    offered = [*found, LATEST] if found else []
    if any(run.startswith(incomplete) for run in offered):
        return offered
    return [run.rpartition("-")[2] for run in found]


def listings() -> list[str]:
    """Offer what `ampbench list` lists."""
    from ampbench.cli.list import LISTINGS

    return [*LISTINGS]


def formats() -> list[str]:
    """Offer what `ampbench convert` writes and reads."""
    from ampbench.cli.convert import NATIVE, PARQUET
    from ampbench.convert import FORMATS

    return [*FORMATS, PARQUET, NATIVE]


def optimizers() -> Offers:
    """Offer the recipes and torch's optimizers."""
    torchs = [(name, f"torch.optim.{row.kind}") for name, row in OPTIMIZERS.items()]
    return [*((name, row.summary) for name, row in RECIPES.items()), *torchs]


def completer(names: str) -> Callable[[str], Offers] | None:
    """Return the completer of values of an option or argument, also after a comma; None where none are known."""
    known = _KNOWN.get(names)
    if known is None:
        return None

    def complete(incomplete: str) -> Offers:
        before = incomplete[: incomplete.rfind(",") + 1]
        offered = known()
        said = offered if isinstance(offered, Mapping) else dict.fromkeys(offered, "")
        return [(before + name, said[name]) for name in said]

    return complete


def _workloads() -> Mapping[str, str]:
    from ampbench.workloads.index import FAMILIES, WORKLOADS

    families = {name: f"all of the family {name}" for name in FAMILIES}
    return families | {name: row.summary for name, row in WORKLOADS.items()} | {"all": "every built-in workload"}


def _memory_formats() -> Iterable[str]:
    from ampbench.drive.planning import MEMORY_FORMATS

    return MEMORY_FORMATS


def _presets() -> Iterable[str]:
    from ampbench.workloads.index import PRESETS

    return PRESETS


_KNOWN: Mapping[str, Callable[[], Mapping[str, str] | Iterable[str]]] = {
    "WORKLOAD": _workloads,
    "--precision": lambda: {name: row.summary for name, row in PRECISIONS.items()},
    "--device": lambda: DEVICES,
    "--phase": lambda: PHASES,
    "--path": lambda: PATHS,
    "--compile-mode": lambda: COMPILE_MODES,
    "--memory-format": _memory_formats,
    "--preset": _presets,
    "--sdpa": lambda: (TORCHS_CHOICE, *SDPA),
}
