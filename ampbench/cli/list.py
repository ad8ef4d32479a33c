"""`ampbench list`: what there is to name on a command line."""

from collections.abc import Callable, Mapping, Sequence
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

Listing = Sequence[dict[str, Any]]


def command(
    *,
    what: Annotated[
        str,
        Argument(metavar="WHAT", help="workloads, precisions, recipes, devices or runs.", offers=lambda *_: LISTINGS),
    ],
    which: Annotated[
        str,
        Argument(metavar="NAME", help="Of workloads: a part of a name, or timm:PART of a library's networks."),
    ] = "",
    results: Results = DEFAULT_RESULTS,
    format: Format,
) -> int:
    """List workloads, precisions, recipes, devices or runs.

    \b
    Examples:
      ampbench list workloads
      ampbench list workloads torchvision:resnet
      ampbench list runs --results bench/results
      ampbench list devices --json
    """
    if what not in LISTINGS:
        raise UnknownNameError("thing to list", what, LISTINGS)
    if which and what != "workloads":
        raise UsageError(f"ampbench list {what} takes no name: leave {which} out")

    if which.partition(":")[0] in LIBRARIES:
        return _list_networks(which, format)
    rows = LISTINGS[what](results)
    columns = TABLE_COLUMNS[what]
    if which:
        rows = [row for row in rows if which in f"{row['workload']} {row['family']} {row['summary']}"]
        if not rows:
            known = [*WORKLOADS, *(f"{library}:" for library in LIBRARIES)]
            raise UnknownNameError("workload", which, known, instead="ampbench list workloads lists them")
    if format in (OutputFormat.TABLE, OutputFormat.MARKDOWN) and what == "workloads":
        rows = [row | {"summary": _about(row)} for row in rows]
    elif format in (OutputFormat.TABLE, OutputFormat.MARKDOWN) and what == "recipes":
        rows = [row | {"summary": f"{row['summary']}\n  {_assigned(row['settings'])}"} for row in rows]
    elif format in (OutputFormat.TABLE, OutputFormat.MARKDOWN) and what == "runs":
        columns = [name for name in columns if name not in SELDOM or any(row[name] not in SELDOM[name] for row in rows)]
        rows = [row | {"torch": (row["torch"] or "").partition("+")[0], "outcome": _what(row)} for row in rows]
    absent = []
    if format is OutputFormat.TABLE and what == "devices":
        absent = [f"{row['device']}: {row['name']}" for row in rows if not row["available"]]
        rows = [row | {"name": row["name"] if row["available"] else ""} for row in rows]
    print_listing(rows, columns, format, empty=EMPTY.get(what, ""))
    if absent:
        print_text("\n" + "\n".join(absent))
    return 0


def _list_networks(which: str, format: OutputFormat) -> int:
    """Print the networks of a library that a pattern names, or whose names have a part in them; a server is asked."""
    from ampbench.drive.planning import default_preset
    from ampbench.drive.servers import ONLY, Pool, ServerChannel, ask_environment
    from ampbench.drive.session import describer
    from ampbench.records.run import Settings

    library, _, part = which.partition(":")
    source = library_source(LIBRARIES[library], part)
    source = source if is_pattern(source) else library_source(LIBRARIES[library], f"*{part}*")
    with Pool({ONLY: lambda: ServerChannel(preload=[source.module])}) as pool:
        absent = ask_environment(pool).unavailable.get(library)
        found = None if absent else describer(pool, Settings())(source, {}, default_preset("cpu"))
    if found is None or found.unavailable:
        raise UsageError(found.unavailable if found else f"{library} cannot be imported: {absent}")
    rows: Listing = [
        {"workload": f"{library}:{one.name}", "task": one.task, "parameters": one.parameters} for one in found.networks
    ]
    if format in (OutputFormat.TABLE, OutputFormat.MARKDOWN):
        rows = [row | {"parameters": _assigned(row["parameters"] or {})} for row in rows]
    columns = ("workload", "task", "parameters")
    print_listing(rows, columns if any(row["parameters"] for row in rows) else columns[:2], format, empty="")
    return 0


def workloads(results: Path) -> Listing:  # noqa: ARG001 - all listings have one signature
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
            "optional": dict(spec.optional),
        }
        for spec in WORKLOADS.values()
    ]


def _about(row: Mapping[str, Any]) -> str:
    """Return a workload's summary, its parameters with the values of a CPU's preset, and its place in the suite."""
    suite = f"; default suite: {', '.join(row['suite'])}" if row["suite"] else ""
    return f"{row['summary']}\n  {_assigned(row['small'] | row['optional'])}{suite}"


def _assigned(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def precisions(results: Path) -> Listing:  # noqa: ARG001
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


def recipes(results: Path) -> Listing:  # noqa: ARG001
    """Return the recipes that networks are trained by, with their settings."""
    from ampbench.core.recipes import RECIPES, SETTINGS

    shown = (*SETTINGS, "schedule", "warmup", "final")

    return [
        {
            "recipe": row.name,
            "summary": row.summary,
            "settings": {name: value for name in shown if (value := getattr(row, name)) not in (None, "")},
        }
        for row in RECIPES.values()
    ]


def devices(results: Path) -> Listing:  # noqa: ARG001
    """Return the device types torch knows here; asks a worker, as only torch can tell."""
    from ampbench.drive.servers import probe
    from ampbench.records.labels import arithmetic

    return [
        {
            "device": device.type,
            "available": device.available,
            "name": device.name if device.available else device.reason,
            "count": device.count,
            "memory_bytes": device.memory_bytes,
            "arithmetic": arithmetic(device),
            "tf32": device.tf32,
            "float64": device.float64,
            "autocast": device.autocast_dtype,
        }
        for device in probe().devices
    ]


def runs(results: Path) -> Listing:
    """Return the stored runs of a results folder, the oldest first; a damaged one says what is wrong with it."""
    from ampbench import store

    store.check_folder(results)
    return [_run(path) for path in store.list_runs(results)]


def _what(row: Mapping[str, Any]) -> str:
    """Return what a run measured and what came of it; of one that explains, its outcome says both."""
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
        stored = store.read_run(path, lambda rounds: measured.update(one.case_id for one in rounds if not one.control))
    except StoreError as error:
        return row | {"outcome": f"unreadable: {error}"}
    measured.update(stored.explained, *stored.readings.values())
    ok, failed = measured - stored.failures.keys(), len(stored.failures)
    counts = {"ok": len(ok), "failed": failed, "skipped": len(stored.cases) - len(ok) - failed}
    explains = stored.header.explains
    said = ": ".join(filter(None, [_explained(stored), outcomes_said(counts)]))
    said = f"{said}; lines are missing" if stored.lacks else said
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
        "outcome": ": ".join(filter(None, [stored.misnamed, "" if stored.complete else stored.ending, said])),
    }


def _explained(stored: "StoredRun") -> str:
    """Return what a run explains, and of which cases; "" for one that measured."""
    cases = stored.cases.values()
    traits = [few(getattr(case, trait) for case in cases) for trait in ("workload", "precision", "phase")]
    what = stored.header.explains
    return f"{deed_of(what)}{' of ' if cases else ''}{' '.join(filter(None, traits))}" if what else ""


LISTINGS: Mapping[str, Callable[[Path], Listing]] = {
    "workloads": workloads,
    "precisions": precisions,
    "recipes": recipes,
    "devices": devices,
    "runs": runs,
}
TABLE_COLUMNS: Mapping[str, Sequence[str]] = {
    "workloads": ("workload", "family", "summary"),
    "precisions": ("precision", "summary", "aliases"),
    "recipes": ("recipe", "summary"),
    "devices": ("device", "available", "tf32", "autocast", "arithmetic", "name"),
    "runs": ("run", "date", "label", "torch", "device", "outcome"),
}
"""What a table shows of a listing; the machine formats give every column."""
SELDOM: Mapping[str, Sequence[str | None]] = {"label": ("", None), "device": ("cpu", "", None)}
"""Columns of runs that a table shows where one of them has something else there."""

_NAMED = 2
"""As many workloads of a run are named in a table, of more only the first."""

EMPTY = {"runs": "there is no run yet: `ampbench run` makes one"}
