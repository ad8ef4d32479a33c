"""`ampbench list`: the names that a command line can use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ampbench.cli.options import DEFAULT_RESULTS, Argument, Format, Results
from ampbench.cli.printing import OutputFormat, print_listing, print_text
from ampbench.errors import StoreError, UnknownNameError, UsageError
from ampbench.records.kinds import KINDS, deed_of
from ampbench.records.labels import few, outcomes_said
from ampbench.workloads.index import LIBRARIES, PRESETS, WORKLOADS, is_pattern, library_source

if TYPE_CHECKING:
    from ampbench.store import StoredRun

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list: its `rows` for machines, the `columns` of its table, and the cells of a row as `shown` to people.

    A column with only `usual` values is left out of the table.
    """

    rows: Callable[[Path], Rows]
    columns: Sequence[str]
    shown: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _: {}
    usual: Sequence[str | None] = ()


def command(
    *,
    kind: Annotated[
        str,
        Argument(metavar="[workloads|precisions|recipes|checks|runs]", help="What to list."),
    ],
    which: Annotated[
        str,
        Argument(
            metavar="NAME",
            help="Of workloads: a part of a name, or timm:PART of a library's; of checks: one, for its program.",
        ),
    ] = "",
    results: Results = DEFAULT_RESULTS,
    format: Format,
) -> int:
    """List workloads, precisions, recipes, checks or runs.

    \b
    Examples:
      ampbench list workloads
      ampbench list workloads torchvision:resnet
      ampbench list runs --results bench/results
    """
    if kind not in LISTINGS:
        raise UnknownNameError("thing to list", kind, LISTINGS)
    if which and kind not in ("workloads", "checks"):
        raise UsageError(f"ampbench list {kind} takes no name: leave {which} out")
    if which and kind == "checks":
        print_text(_program(which))
        return 0

    if which.partition(":")[0] in LIBRARIES:
        return _list_networks(which, format)
    listing = LISTINGS[kind]
    rows = listing.rows(results)
    if which:
        rows = [row for row in rows if which in f"{row['workload']} {row['family']} {row['summary']}"]
        if not rows:
            known = [*WORKLOADS, *(f"{library}:" for library in LIBRARIES)]
            raise UnknownNameError("workload", which, known, instead="ampbench list workloads lists them")
    columns = listing.columns
    if format in (OutputFormat.TABLE, OutputFormat.MARKDOWN):
        rows = [row | listing.shown(row) for row in rows]
        columns = [name for name in columns if any(row[name] not in listing.usual for row in rows)]
    print_listing(rows, columns, format, empty="there is no run yet: `ampbench run` makes one")
    return 0


def _list_networks(which: str, format: OutputFormat) -> int:
    """Print the networks of a library that match a pattern, or whose names contain a part; ask a server for them."""
    from ampbench.drive.planning import default_preset
    from ampbench.drive.servers import ONLY, Pool, ServerChannel, ask_environment
    from ampbench.drive.session import describer
    from ampbench.records.run import Settings

    library, _, part = which.partition(":")
    source = library_source(LIBRARIES[library], part)
    source = source if is_pattern(source) else library_source(LIBRARIES[library], f"*{part}*")
    with Pool({ONLY: lambda: ServerChannel(preload=[source.module])}) as pool:
        absent = ask_environment(pool).unavailable.get(library)
        description = None if absent else describer(pool, Settings())(source, {}, default_preset("cpu"))
    if description is None or description.unavailable:
        raise UsageError(description.unavailable if description else f"{library} cannot be imported: {absent}")
    rows: Rows = [
        {"workload": f"{library}:{network.name}", "task": network.task, "parameters": network.parameters}
        for network in description.networks
    ]
    if format in (OutputFormat.TABLE, OutputFormat.MARKDOWN):
        rows = [row | {"parameters": _assigned(row["parameters"] or {})} for row in rows]
    columns = ("workload", "task", "parameters")
    print_listing(rows, columns if any(row["parameters"] for row in rows) else columns[:2], format, empty="")
    return 0


def _program(name: str) -> str:
    """Return the program of a check, to paste; raise `UnknownNameError` for an unknown name."""
    from ampbench.defects import CHECKS, program_of

    if name not in CHECKS:
        raise UnknownNameError("check", name, CHECKS)
    return program_of(CHECKS[name], CHECKS[name].devices[0])


def checks(results: Path) -> Rows:  # noqa: ARG001
    """Return the known defects that `ampbench check` looks for, and the public threads about each."""
    from ampbench.defects import CHECKS

    texts, lists = ("area", "title", "why", "remedy", "mended"), ("threads", "devices", "matters")
    return [
        {"check": name}
        | {field: getattr(check, field) for field in texts}
        | {field: list(getattr(check, field)) for field in lists}
        for name, check in CHECKS.items()
    ]


def workloads(results: Path) -> Rows:  # noqa: ARG001 - all listings have one signature
    """Return the built-in workloads, with the parameters of each preset."""
    return [
        {
            "workload": spec.name,
            "family": spec.family,
            "summary": spec.summary,
            "items": spec.items,
            "suite": list(spec.suite),
            "needs": spec.needs or None,
            "version": spec.version,
            **{preset: dict(spec.preset(preset)) for preset in PRESETS},
        }
        for spec in WORKLOADS.values()
    ]


def _about(row: Mapping[str, Any]) -> str:
    """Return a workload's summary, its parameters with the values of a CPU's preset, and its place in the suite."""
    suite = f"; default suite: {', '.join(row['suite'])}" if row["suite"] else ""
    return f"{row['summary']}\n  {_assigned(row['small'])}{suite}"


def _assigned(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def precisions(results: Path) -> Rows:  # noqa: ARG001
    """Return the precisions, in table order."""
    from ampbench.core.precisions import BY_DEVICE, PRECISIONS, SHORT_DTYPES

    by_device: dict[str, list[str]] = {}
    for alias, meant in BY_DEVICE.items():
        for name in dict.fromkeys(meant.values()):
            on = ", ".join(device for device in meant if meant[device] == name)
            by_device.setdefault(name, []).extend([f"{alias} (on {on})"] if alias != name else [])
    return [
        {
            "precision": row.name,
            "summary": row.summary,
            "aliases": [*row.aliases, *by_device.get(row.name, [])],
            "storage": SHORT_DTYPES[row.storage],
            "autocast": SHORT_DTYPES[row.autocast] if row.autocast else None,
            "tf32": row.tf32,
            "fp32_products": row.fp32_products,
            "master": row.master,
            "scaler": row.scaler,
        }
        for row in PRECISIONS.values()
    ]


def recipes(results: Path) -> Rows:  # noqa: ARG001
    """Return the recipes that networks are trained by, with their settings."""
    from ampbench.core.recipes import RECIPES, SETTINGS

    names = (*SETTINGS, "schedule", "warmup", "final")

    return [
        {
            "recipe": row.name,
            "summary": row.summary,
            "settings": {name: value for name in names if (value := getattr(row, name)) not in (None, "")},
        }
        for row in RECIPES.values()
    ]


def runs(results: Path) -> Rows:
    """Return the stored runs of a results folder, the oldest first; a damaged run has its defect as outcome."""
    from ampbench import store

    store.check_folder(results)
    return [_run(path) for path in store.list_runs(results)]


def _outcome(row: Mapping[str, Any]) -> str:
    """Return the networks and the outcome of a run; an explaining run's outcome has both."""
    names = [] if row["explains"] else row["workloads"] or []
    workloads = few(names, len(names) if len(names) <= _NAMED else 1)
    return ": ".join(filter(None, [workloads, row["outcome"].replace(f"{row['path']}, ", "")]))


def _run(path: Path) -> dict[str, Any]:
    from ampbench import store

    known = (
        "run", "label", "date", "started", "torch", "device", "workloads", "explains", "cases", "outcome", "path",
    )  # fmt: skip
    row: dict[str, Any] = dict.fromkeys(known) | {"run": store.run_id(path), "path": str(path)}
    measured: set[str] = set()
    try:
        stored = store.read_run(
            path, lambda rounds: measured.update(timing.case_id for timing in rounds if not timing.control)
        )
    except StoreError as error:
        return row | {"outcome": f"unreadable: {error}"}
    measured.update(stored.explained, *stored.readings.values())
    ok, failed = measured - stored.failures.keys(), len(stored.failures)
    counts = {"ok": len(ok), "failed": failed, "skipped": len(stored.cases) - len(ok) - failed}
    explains = stored.header.explains
    outcome = ": ".join(filter(None, [_explained(stored), outcomes_said(counts)]))
    of_devices = () if not explains or KINDS[explains].of_cases else stored.found.get(KINDS[explains].found.line, ())
    devices = dict.fromkeys([*(case.device for case in stored.cases.values()), *of_devices])
    return row | {
        "label": stored.header.label,
        "date": stored.header.started_at[:16].replace("T", " "),
        "started": stored.header.started_at,
        "torch": stored.header.environment.torch_version,
        "device": " ".join(devices),
        "workloads": list(dict.fromkeys(case.workload for case in stored.cases.values())),
        "explains": explains or None,
        "cases": len(stored.cases),
        "outcome": ": ".join(filter(None, ["" if stored.complete else stored.ending, outcome])),
    }


def _explained(stored: "StoredRun") -> str:
    """Return the study of a run, and its cases; "" for a run that measured."""
    cases = stored.cases.values()
    traits = [few(getattr(case, trait) for case in cases) for trait in ("workload", "precision", "phase")]
    kind = stored.header.explains
    return f"{deed_of(kind)}{' of ' if cases else ''}{' '.join(filter(None, traits))}" if kind else ""


_NAMED = 2
"""The most workloads of a run in a table; of more, only the first."""

LISTINGS: Mapping[str, Listing] = {
    "workloads": Listing(workloads, ("workload", "family", "summary"), lambda row: {"summary": _about(row)}),
    "precisions": Listing(
        precisions,
        ("precision", "summary"),
        lambda row: {"summary": f"{row['summary']}\n  also {', '.join(row['aliases'])}".removesuffix("\n  also ")},
    ),
    "recipes": Listing(
        recipes,
        ("recipe", "summary"),
        lambda row: {"summary": f"{row['summary']}\n  {_assigned(row['settings'])}"},
    ),
    "checks": Listing(checks, ("check", "area", "title")),
    "runs": Listing(
        runs,
        ("run", "date", "label", "torch", "device", "outcome"),
        lambda row: {"torch": (row["torch"] or "").partition("+")[0], "outcome": _outcome(row)},
        usual=("", None, "cpu"),
    ),
}
