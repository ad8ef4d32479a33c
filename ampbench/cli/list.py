"""`ampbench list`: the names that a command line can use."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ampbench import store
from ampbench.cli.options import DEFAULT_RESULTS, Argument, Format, Results
from ampbench.cli.printing import OutputFormat, print_listing, print_text
from ampbench.core.precisions import BY_DEVICE, PRECISIONS, SHORT_DTYPES
from ampbench.core.recipes import RECIPES, SETTINGS
from ampbench.errors import StoreError, UnknownNameError, UsageError
from ampbench.records.kinds import KINDS, deed_of
from ampbench.records.labels import few, outcomes_said
from ampbench.records.run import Settings
from ampbench.workloads.index import LIBRARIES, PRESETS, WORKLOADS, is_pattern, library_source

Rows = Sequence[dict[str, Any]]
USUAL = ("", None, "cpu")
"""A column with only these values is left out of a table."""


class Listing(NamedTuple):
    """A list: its `rows` for machines, the `columns` of its table, and the cells of a row as `shown` to people."""

    rows: Callable[[], Rows]
    columns: Sequence[str]
    shown: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _: {}


def command(
    *,
    kind: Annotated[str, Argument(metavar="[workloads|precisions|recipes|checks|runs]", help="What to list.")],
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
        from ampbench.defects import CHECKS, program_of

        if which not in CHECKS:
            raise UnknownNameError("check", which, CHECKS)
        print_text(program_of(CHECKS[which], CHECKS[which].devices[0]))
        return 0

    listing = LISTINGS[kind]
    if which.partition(":")[0] in LIBRARIES:
        listing = Listing(
            lambda: _networks(which), ("workload", "task", "parameters"),
            lambda row: {"parameters": _assigned(row["parameters"] or {})},
        )  # fmt: skip
        rows = listing.rows()
    else:
        rows = runs(results) if kind == "runs" else listing.rows()
        rows = [row for row in rows if not which or which in f"{row['workload']} {row['family']} {row['summary']}"]
        if which and not rows:
            known = [*WORKLOADS, *(f"{library}:" for library in LIBRARIES)]
            raise UnknownNameError("workload", which, known, instead="ampbench list workloads lists them")
    columns = listing.columns
    if format in (OutputFormat.TABLE, OutputFormat.MARKDOWN):
        rows = [row | listing.shown(row) for row in rows]
        columns = [name for name in columns if any(row[name] not in USUAL for row in rows)]
    print_listing(rows, columns, format, empty="there is no run yet: `ampbench run` makes one")
    return 0


def _networks(which: str) -> Rows:
    """Return the networks of a library that match a pattern, or whose names contain a part; ask a server for them."""
    from ampbench.drive.planning import default_preset
    from ampbench.drive.servers import ONLY, Pool, ServerChannel, ask_environment
    from ampbench.drive.session import describer

    library, _, part = which.partition(":")
    source = library_source(LIBRARIES[library], part)
    source = source if is_pattern(source) else library_source(LIBRARIES[library], f"*{part}*")
    with Pool({ONLY: lambda: ServerChannel(preload=[source.module])}) as pool:
        absent = ask_environment(pool).unavailable.get(library)
        description = None if absent else describer(pool, Settings())(source, {}, default_preset("cpu"))
    if description is None or description.unavailable:
        raise UsageError(description.unavailable if description else f"{library} cannot be imported: {absent}")
    return [
        {"workload": f"{library}:{network.name}", "task": network.task, "parameters": network.parameters}
        for network in description.networks
    ]


def _assigned(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _fields(record: Any, *names: str) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def checks() -> Rows:
    """Return the known defects that `ampbench check` looks for, and the public threads about each."""
    from ampbench.defects import CHECKS

    fields = ("area", "title", "why", "remedy", "mended", "threads", "devices", "matters")
    return [{"check": name} | _fields(check, *fields) for name, check in CHECKS.items()]


def workloads() -> Rows:
    """Return the built-in workloads, with the parameters of each preset."""
    return [
        {"workload": spec.name}
        | _fields(spec, "family", "summary", "items", "suite", "needs", "version")
        | {preset: dict(spec.preset(preset)) for preset in PRESETS}
        | {"needs": spec.needs or None}
        for spec in WORKLOADS.values()
    ]


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload's summary with its parameters on a CPU and its place in the suite."""
    suite = f"; default suite: {', '.join(row['suite'])}" if row["suite"] else ""
    return {"summary": f"{row['summary']}\n  {_assigned(row['small'])}{suite}"}


def precisions() -> Rows:
    """Return the precisions, in table order."""
    aliases = {name: list(row.aliases) for name, row in PRECISIONS.items()}
    for alias, meant in BY_DEVICE.items():
        for name in dict.fromkeys(meant.values()):
            on = ", ".join(device for device in meant if meant[device] == name)
            aliases[name] += [f"{alias} (on {on})"] if alias != name else []
    return [
        {
            "precision": name,
            "summary": row.summary,
            "aliases": aliases[name],
            "storage": SHORT_DTYPES[row.storage],
            "autocast": SHORT_DTYPES[row.autocast] if row.autocast else None,
        }
        | _fields(row, "tf32", "fp32_products", "master", "scaler")
        for name, row in PRECISIONS.items()
    ]


def recipes() -> Rows:
    """Return the recipes that networks are trained by, with their settings."""
    names = (*SETTINGS, "schedule", "warmup", "final")
    rows = []
    for row in RECIPES.values():
        settings = {name: value for name, value in _fields(row, *names).items() if value not in (None, "")}
        rows.append({"recipe": row.name, "summary": row.summary, "settings": settings})
    return rows


def runs(results: Path = DEFAULT_RESULTS) -> Rows:
    """Return the stored runs of a results folder, the oldest first; a damaged run has its defect as outcome."""
    store.check_folder(results)
    return [_run(path) for path in store.list_runs(results)]


def _of_run(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return torch's version, and the outcome of a run with its networks; an explaining run's outcome has both."""
    names = [] if row["explains"] else row["workloads"] or []
    workloads = few(names, len(names) if len(names) <= _NAMED else 1)
    outcome = ": ".join(filter(None, [workloads, row["outcome"].replace(f"{row['path']}, ", "")]))
    return {"torch": (row["torch"] or "").partition("+")[0], "outcome": outcome}


def _run(path: Path) -> dict[str, Any]:
    known = (
        "run", "label", "started", "torch", "device", "workloads", "explains", "cases", "outcome", "path",
    )  # fmt: skip
    row: dict[str, Any] = dict.fromkeys(known) | {"run": store.run_id(path), "path": str(path)}
    try:
        stored = store.read_run(path)
    except StoreError as error:
        return row | {"outcome": f"unreadable: {error}"}
    measured = {timing.case_id for timing in stored.rounds if not timing.control}
    measured.update(stored.explained, *stored.readings.values())
    ok, failed = measured - stored.failures.keys(), len(stored.failures)
    counts = {"ok": len(ok), "failed": failed, "skipped": len(stored.cases) - len(ok) - failed}
    explains = stored.header.explains
    cases = stored.cases.values()
    study = ""
    if explains:
        traits = [few(getattr(case, trait) for case in cases) for trait in ("workload", "precision", "phase")]
        study = f"{deed_of(explains)}{' of ' if cases else ''}{' '.join(filter(None, traits))}"
    of_devices = () if not explains or KINDS[explains].of_cases else stored.found.get(KINDS[explains].found.line, ())
    devices = dict.fromkeys([*(case.device for case in cases), *of_devices])
    return row | {
        "label": stored.header.label,
        "started": stored.header.started_at,
        "torch": stored.header.environment.torch_version,
        "device": " ".join(devices),
        "workloads": list(dict.fromkeys(case.workload for case in cases)),
        "explains": explains or None,
        "cases": len(stored.cases),
        "outcome": ": ".join(filter(None, ["" if stored.complete else stored.ending, study, outcomes_said(counts)])),
    }


_NAMED = 2
"""The most workloads of a run in a table; of more, only the first."""

LISTINGS: Mapping[str, Listing] = {
    "workloads": Listing(workloads, ("workload", "family", "summary"), _about),
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
    "runs": Listing(runs, ("run", "label", "torch", "device", "outcome"), _of_run),
}
