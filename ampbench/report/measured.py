"""What was measured, where, when and with what: the facts about the runs shown, as text."""

import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from ampbench.precisions import PRECISIONS
from ampbench.records.environments import Environment
from ampbench.records.runs import Header
from ampbench.report.material import Material, Shown, ShownCase
from ampbench.store import StoredRun
from ampbench.trends.sentences import number as counted

LISTED = 5
"""So many values of one fact are told, and so many runs without being asked for."""


def facts(material: Material) -> list[tuple[str, list[str]]]:
    """Return what was measured, where, when and with what, of all runs; what nobody told is left out."""
    runs = [shown.stored for shown in material.shown]
    headers = [one.header for one in runs]
    environments = [one.environment for one in headers]
    found = [
        ("Measured", [_measured(material.cases)]),
        ("Where", [_where(one, shown) for one, shown in zip(environments, material.shown, strict=True)]),
        ("When", [_when(runs)] if runs else []),
        ("With", [_installation(one) for one in headers]),
        ("Label", [one.label for one in headers]),
        ("Commit", [one.commit or "" for one in headers]),
        ("Command", [shlex.join(one.command) for one in headers]),
        ("Run", [runs[0].header.run] if len(runs) == 1 else [f"{len(runs)} runs"]),
    ]
    told = [(name, list(dict.fromkeys(value for value in values if value))) for name, values in found]
    return [
        (name, values if len(values) <= LISTED else [f"{len(values)} different ones, listed by run below"])
        for name, values in told
        if values
    ]


def _measured(cases: Sequence[ShownCase]) -> str:
    if not cases:
        return "no cases"
    outcomes = Counter(one.row["outcome"] for one in cases)
    counts = ", ".join(f"{outcomes[name]} {name}" for name in ("ok", "failed", "skipped") if outcomes[name])
    ok = [one.case for one in cases if one.row["outcome"] == "ok"] or [one.case for one in cases]
    workloads = counted(len({case.workload for case in ok}), "workload", "workloads")
    names = {case.precision for case in ok}
    ordered = [*(name for name in PRECISIONS if name in names), *sorted(names - set(PRECISIONS))]
    traits = (dict.fromkeys(getattr(case, name) for case in ok) for name in ("phase", "path", "device"))
    return f"{counted(len(cases), 'case', 'cases')} ({counts}): {workloads} in {', '.join(ordered)}; " + "; ".join(
        ", ".join(values) for values in traits
    )


def _where(environment: Environment, shown: Shown) -> str:
    """Return host, processor, devices and threads."""
    devices = dict.fromkeys(row["device"] for row in shown.rows if row["device"] != "cpu")
    described = [one for name in devices if (one := environment.device(name)) is not None]
    return _joined(
        environment.host,
        environment.cpu,
        counted(environment.cpu_count, "logical CPU", "logical CPUs") if environment.cpu_count else "",
        *(f"{one.type}: {one.name}" for one in described if one.name),
        counted(environment.threads, "thread", "threads") if environment.threads else "",
        environment.system,
    )


def _installation(header: Header) -> str:
    environment, imported = header.environment, header.imported
    versions = {
        "torch": environment.torch_version,
        "torchvision": environment.torchvision_version,
        "CUDA": environment.cuda_version,
        "XPU": environment.xpu_version,
        "Python": environment.python_version,
        "ampbench": header.ampbench_version,
    }
    said = [f"{name} {version}" for name, version in versions.items() if version]
    return _joined(*said, f"imported from {imported.program}" if imported else "")


def _when(runs: Sequence[StoredRun]) -> str:
    """Return from when to when the runs were measured, in UTC."""
    start = min(_moment(one.header.started_at) for one in runs)
    end = max((_moment(one.footers[-1].finished_at) for one in runs if one.footers), default="")
    if not end or end == start:
        return f"{start} UTC"
    return f"{start} to {end.removeprefix(start[:11]) if end[:11] == start[:11] else end} UTC"


def _moment(text: str) -> str:
    """Return an ISO 8601 time as "2026-11-21 05:19" in UTC; what is no time as it is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def run_facts(shown: Shown) -> dict[str, str]:
    """Return a run as a row of the list of runs."""
    header, stored = shown.stored.header, shown.stored
    outcomes = Counter(row["outcome"] for row in shown.rows)
    return {
        "run": header.run,
        "label": header.label,
        "when": _when([stored]),
        "where": _where(header.environment, shown),
        "with": _installation(header),
        "commit": header.commit or "",
        "command": shlex.join(header.command),
        "cases": ", ".join(f"{outcomes[name]} {name}" for name in ("ok", "failed", "skipped") if outcomes[name]),
        "ended": stored.ended or "killed, or still running",
    }


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
