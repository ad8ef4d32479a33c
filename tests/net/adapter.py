"""What ampbench makes of stored runs, as plain data: the only file of the net that touches ampbench.

A module that is swapped for another is swapped here alone. A table is a list of rows, each a key and its cells by
column; a cell is a number, a truth value, a short token or None. No sentence is in it.
"""

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import ampbench
from ampbench import store
from ampbench.cli.main import main
from ampbench.core.budget import Budget
from ampbench.core.precisions import BASELINE
from ampbench.core.statement import Answer, Undecided
from ampbench.errors import AmpbenchError
from ampbench.judge import frame as frames
from ampbench.judge import rounds as fitness
from ampbench.judge.compare import compare
from ampbench.judge.gate import Policy, judge, read_policy
from ampbench.judge.verdict import LOOKS, takes_of
from ampbench.records.changes import Comparison, Status
from ampbench.records.rules import RuleChange
from ampbench.show import studies
from ampbench.studies.study import study_of
from ampbench.trend import make_trend
from ampbench.trend.values import read_runs, tracked
from tests.net.plain import Row, Tables, as_before, as_cells, nested_tables, summary, tokens

SENTENCES = ("reason",)
"""Columns of a frame that hold sentences."""
PARTS = ("header", "cases", "rounds", "memory", "divergence", "failures", "skips", "readings", "found", "footers")
"""What a run holds."""
COLUMNS = {code: str(code) for code in Undecided} | {look.code: look.column for look in LOOKS}
COLUMNS |= {Answer.SAVE: "memory_ratio_vs_fp32", "equal": "output_rel_l2"}
CASTS = {"rows": "rows cast", "casts": "cast cast", "modules": "module module", "tensors": "tensor tensor"}
WRONG = (Status.REFUSED, Status.UNDECIDED)
BUDGETS = {"default": Budget(), "tight": Budget(output_rel_l2=3e-3, grad_rel_l2=1e-2, argmax_agreement=1.0)}


def of_run(path: Path) -> Tables:
    """Return the tables of a stored run: its records and frame, and its advice or, of a study, its own table."""
    stored = store.read_run(path)
    records = sorted(map(as_before, summary({part: getattr(stored, part) for part in PARTS})), key=itemgetter(0))
    tables: Tables = {"records": records}
    if stored.header.explains:
        return tables | _study(stored)
    loaded = ampbench.load(path).drop(columns=list(SENTENCES)).astype(object)
    tables["frame"] = [(row["case_id"], as_cells(row)) for row in loaded.to_dict("records")]
    rows = frames.run_rows(stored)
    for name, budget in BUDGETS.items():
        tables[f"advice, {name} budget"] = list(_advice(stored, rows, budget))
    control = fitness.control_ratio(stored)
    told = {"disturbed_share": fitness.disturbed_share(stored), "unfit": bool(fitness.unfit_said(stored))}
    if control:
        told |= {
            "case_id": control.case_id,
            "rounds": min(len(control.own), len(control.again)),
            "ratio": control.ratio,
        }
    return tables | {"control": [("control", as_cells(told))]}


_read = lru_cache(4)(store.read_run)  # pairs of a history follow each other


def of_pair(baseline: Path, candidate: Path, policies: Mapping[str, Mapping[str, Any]]) -> Tables:
    """Return the tables of two stored runs: their findings, what else a comparison says, and what gates do."""
    tables: Tables = {"gates": []}
    base, new = _read(baseline), _read(candidate)
    try:
        usual = compare(base, new)
    except AmpbenchError as error:
        return {"gates": [("compared", {"exit_code": error.exit_code})]}
    tables |= _compared(usual)
    for name, settings in policies.items():
        policy = read_policy(settings["file"]) if "file" in settings else Policy(**settings)
        own = compare(base, new, policy.threshold_of) if policy.thresholds or policy.rules else usual
        tables["gates"].append((name, _gate(own, policy)))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(["gate", str(baseline), str(candidate)])
    return tables | {"command": [("gate", {"exit_code": code})]}


def of_history(paths: Iterable[Path]) -> Tables:
    """Return the series of some stored runs over versions of torch, and where they change."""
    metrics = tracked(())
    runs = read_runs([str(path) for path in paths], Path("results")).runs
    trend = make_trend(runs, "torch_version", metrics)
    series, changes = [], []
    for each in trend.series:
        key = f"{each.case.case_id} {each.metric.name} {each.numbers}"
        values = {f"{place}": point.value for place, point in enumerate(each.points)}
        series.append((key, as_cells({"rule": each.rule} | values)))
        for one in each.changes:
            cells = {name: getattr(one, name) for name in ("before", "after", "ratio", "low", "high", "direction")}
            changes.append((f"{key} {one.x.value}", as_cells(cells)))
    return {"series": series, "changes": changes}


def _study(stored: Any) -> Tables:
    """Return the tables that machines read of a study: its flat rows, and those in its nested data."""
    found = studies.document(study_of(stored.header.explains), stored, list(stored.cases), everything=True)
    parts = {"rows": found.rows(), **dict(nested_tables(found.data(), ""))}
    tables = {f"study, {name}": [(f"{n}", tokens(row)) for n, row in enumerate(rows)] for name, rows in parts.items()}
    return {_known_as(name): rows for name, rows in tables.items()} if stored.header.explains == "casts" else tables


def _known_as(table: str) -> str:
    """Return what a table of a run that explains casts was called when the data was stored."""
    path, _, name = table.rpartition(" ")
    return f"{path} {CASTS.get(name, name)}"


def _advice(stored: Any, rows: list[dict[str, Any]], budget: Budget) -> Iterator[Row]:
    values = {row["case_id"]: row for row in rows}
    for group, take in takes_of(stored, budget).items():
        key = " ".join(str(value) for value in asdict(group).values() if value not in ("", None))
        code = take.passed.code if take.passed else "equal" if "equal" in take.statement.facts else take.statement.code
        deciding, column = take.passed or take.taken, COLUMNS.get(code, "speedup_vs_fp32")
        cells = {"precision": take.precision, "case_id": take.case_id, "column": column}
        cells["passed_id"] = take.passed.case_id if take.passed else None
        yield key, as_cells(cells | {"value": values[deciding.case_id].get(column) if deciding else None})
        for one in take.verdicts:
            if one.evidence and one.precision != BASELINE:
                against = {"column": COLUMNS.get(one.code, str(one.code))} if one.status in WRONG else {}
                yield one.case_id, as_cells({"objection": one.status in WRONG} | against)


def _compared(found: Comparison) -> Tables:
    numbers = ("baseline", "candidate", "change", "low", "high", "threshold", "p_worse", "p_better", "blocks")
    findings = []
    for one in found.findings:
        cells = {name: getattr(one, name) for name in ("kind", "code", *numbers)} | dict(one.details)
        cells["verdict"] = one.status
        findings.append((f"{one.case.case_id} {one.metric}", as_cells(cells)))
    whole = {"interleaved": found.interleaved, "cells": found.control.cells, "fired": found.control.fired}
    listed = ("only_baseline", "only_candidate", "other_numbers", "rule_devices", "rule_devices_missing")
    ids = [(f"{name} {case_id}", {"there": True}) for name in listed for case_id in getattr(found, name)]
    ids += [(f"{name} {one}", {"there": True}) for name in ("skipped", "explained") for one in getattr(found, name)]
    return {
        "findings": findings,
        "comparison": [("whole", whole), *ids],
        "differences": [(one.name, {"matters": one.matters}) for one in found.differences],
        "rules": [_rule(one) for one in (*found.rule_changes, *found.rules_unobserved)],
        "defects": [(f"{one.check} {one.device}", tokens(asdict(one))) for one in found.defects],
    }


def _rule(change: RuleChange) -> Row:
    key = f"{change.op} {change.device} {','.join(change.dtypes)} {change.field}"
    return key, {"before": change.before, "after": change.after}


def _gate(found: Comparison, policy: Policy) -> dict[str, Any]:
    result = judge(found, policy)
    lists = ("regressions", "improved", "inconclusive", "unchanged", "ignored", "missing", "failed", "rule_changes")
    counts = {name: len(getattr(result, name)) for name in lists}
    findings = sum(one.findings for one in result.decided.values())
    decided = sum(one.decided for one in result.decided.values())
    shares = {"findings": findings, "decided": decided, "decided_share": decided / findings if findings else None}
    return as_cells({"exit_code": result.exit_code, "passed": result.passed} | shares | counts)
