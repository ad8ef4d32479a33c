"""What changed or which precision to take, in words; and what was measured, where, when and with what."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ampbench.advice import number, precision_label, times
from ampbench.comparing import sentences
from ampbench.labels import case_labels
from ampbench.precisions import BASELINE
from ampbench.report.machines import Machine, Table, machines, spread
from ampbench.report.material import Material, ShownCase
from ampbench.report.measured import LISTED, facts, run_facts
from ampbench.report.view import View
from ampbench.trends.sentences import number as counted
from ampbench.units import format_error
from ampbench.verdicts import Comparison, Finding, Verdict

WORST = 3
"""So many changes are named with their reasons, and so many failures."""

_ORDER = (*sentences.CHANGED, Verdict.INCONCLUSIVE, Verdict.INCOMPARABLE, Verdict.UNCHANGED)
_WARNED = ("this machine was not quiet", "an emulated ", "imported from ")
"""What begins or is part of those of a run's notes that no reader may miss; the others are plain text."""


def banner(material: Material) -> View | None:
    """Return the view: the page's heading is its verdict or its advice."""
    found = machines(material)
    comparisons = material.comparisons
    measured = any(shown_case.row["outcome"] == "ok" for shown_case in material.cases)
    answers: list[tuple[str, str, list[str]]] = []
    if comparisons:
        heading = _verdict(comparisons)
    elif measured:
        heading, answers = _advice(found, material.budget.output_rel_l2)
    else:
        heading = _nothing(material.cases)
    warned, said = _statements(material)
    content = {
        "heading": heading[:1].upper() + heading[1:],
        "answers": answers,
        "counts": _counts(comparisons),
        "changes": _changes(material),
        "sides": [_sides(one) for one in comparisons],
        "warnings": warned,
        "failures": _failures(material.cases),
        "skips": _skips(material.cases),
        "said": said,
        "facts": facts(material),
        "runs": [run_facts(one) for one in material.shown] if len(material.shown) > 1 else [],
        "folded": len(material.shown) > LISTED,
    }
    return View(id="result", title="Result", template="banner.html", content=content)


def answer(tables: Sequence[Table]) -> str:
    """Return which precision to take for how many of `tables`, all of which have advice."""
    if not any(row["outcome"] == "ok" and row["precision"] != BASELINE for table in tables for row in table.rows):
        return "only fp32 was measured: there is nothing to choose from"
    taken = Counter("" if table.chosen is None else precision_label(table.chosen) for table in tables)
    ranked = sorted(taken, key=lambda label: (label == "", label == BASELINE, -taken[label]))
    phrases = []
    for place, label in enumerate(ranked):
        count = f"{taken[label]} of {_nouns(tables)}" if place == 0 else f"{taken[label]}"
        if len(ranked) == 1:
            count = tables[0].label if len(tables) == 1 else f"all {_nouns(tables)}"
        verb = (
            "no advice" if not label else "stay in fp32" if label == BASELINE else label if place else f"take {label}"
        )
        phrases.append(f"{verb} for {count}")
    return ", ".join(phrases)


def _nouns(tables: Sequence[Table]) -> str:
    """Return how many tables there are, by what tells them apart: "11 workloads and phases"."""
    groups = [table.group for table in tables]
    if len({replace(group, device="") for group in groups}) < len(groups):
        return f"{len(groups)} workloads and devices"
    if len({group.workload for group in groups}) == len(groups):
        return f"{len(groups)} workloads"
    if len({(group.workload, group.phase) for group in groups}) == len(groups):
        return f"{len(groups)} workloads and phases"
    return f"{len(groups)} workloads, phases and settings"


def _verdict(comparisons: Sequence[Comparison]) -> str:
    findings = [one for comparison in comparisons for one in comparison.findings]
    return sentences.summary(findings) if findings else "nothing to compare: no case was measured in both runs"


def _advice(found: Sequence[Machine], allowed: float) -> tuple[str, list[tuple[str, str, list[str]]]]:
    """Return the heading, and for each machine its title and answer, where there are several, and what that brings."""
    known = [machine for machine in found if machine.advised]
    if len(known) == 1:
        heading = f"on {known[0].name}: {answer(known[0].advised)}"
        return heading, [("", "", _gains(known[0], allowed))]
    heading = answer([table for machine in known for table in machine.advised])
    answers = [(one.title, answer(one.advised), _gains(one, allowed)) for one in known]
    torches = {one.runs[-1].stored.header.environment.torch_version for one in known}
    where = "devices" if len(torches) == 1 else "devices or torch versions"
    return f"on {len(known)} {where}: {heading}", answers


def _gains(machine: Machine, allowed: float) -> list[str]:
    """Return what each precision advised brings where it is advised."""
    rows: dict[str, list[tuple[Any, str]]] = {}
    for table in machine.advised:
        chosen = table.chosen
        if chosen is not None and chosen["precision"] != BASELINE:
            rows.setdefault(precision_label(chosen), []).append((chosen, table.label))
    said = []
    for label, chosen_rows in rows.items():
        speed, memory, error = (
            spread((number(row[column]), name) for row, name in chosen_rows)
            for column in ("speedup_vs_fp32", "memory_ratio_vs_fp32", "output_rel_l2")
        )
        parts = []
        if speed is not None and speed.mean is not None:
            ends = f" in geometric mean ({times(speed.least[0])} to {times(speed.most[0])})" if speed.count > 1 else ""
            parts.append(f"{times(speed.mean)} the speed of fp32{ends}")
        if memory is not None and memory.mean is not None and times(memory.mean) != times(1):
            parts.append(f"{times(memory.mean)} the memory")
        if error is not None:
            parts.append(f"an output error of at most {format_error(error.most[0])} of {allowed:g} allowed")
        if parts:
            said.append(f"{label}, where it is advised: {', '.join(parts)}")
    return said


def _nothing(cases: Sequence[ShownCase]) -> str:
    outcomes = Counter(one.row["outcome"] for one in cases)
    said = [f"{counted(outcomes[name], 'case', 'cases')} {name}" for name in ("failed", "skipped") if outcomes[name]]
    return f"nothing was measured: {', '.join(said) or 'there are no cases'}"


def _counts(comparisons: Sequence[Comparison]) -> list[tuple[str, int]]:
    counts = Counter(one.verdict for comparison in comparisons for one in comparison.findings)
    return [(verdict.value, counts[verdict]) for verdict in _ORDER if counts[verdict]]


def _changes(material: Material) -> list[dict[str, str]]:
    """Return the worst changes, regressions first, with their reasons."""
    findings = [one for comparison in material.comparisons for one in comparison.findings]
    labels = case_labels(one.case for one in findings)
    changed = [one for verdict in sentences.CHANGED for one in findings if one.verdict is verdict]
    return [_change(one, labels[one.case.case_id]) for one in changed[:WORST]]


def _change(one: Finding, label: str) -> dict[str, str]:
    values = [sentences.value_text(one.metric, value) for value in (one.baseline, one.candidate)]
    return {
        "verdict": one.verdict.value,
        "label": label,
        "metric": sentences.metric_label(one.metric),
        "values": "" if one.baseline is None and one.candidate is None else " → ".join(values),
        "change": sentences.change_text(one),
        "reason": one.reason,
    }


def _sides(one: Comparison) -> dict[str, Any]:
    """Return what was compared with what, and what is to be said of it beside the warnings."""
    warned = set(sentences.warnings(one))
    return {
        "baseline": sentences.side_name(one.baseline),
        "candidate": sentences.side_name(one.candidate),
        "differing": ", ".join(difference.name for difference in one.differences),
        "said": [said for said in (*sentences.statements(one), *sentences.lonely(one)) if said not in warned],
    }


def _statements(material: Material) -> tuple[list[str], list[str]]:
    """Return what no reader may miss, and what else is to be said of the runs; each once."""
    several = len(material.shown) > 1
    warned: list[str] = []
    said: list[str] = []
    for shown in material.shown:
        stored, comparison = shown.stored, shown.comparison
        which = f"{stored.header.run}: " if several else ""
        if comparison is not None:
            warned += [f"{which}{one}" for one in sentences.warnings(comparison)]
        elif stored.ended != "complete":
            warned.append(f"run {stored.header.run} is not complete: {stored.ended or 'killed, or still running'}")
        for note in shown.notes:
            (warned if any(part in note for part in _WARNED) else said).append(note)
    return list(dict.fromkeys([*warned, *material.remarks])), list(
        dict.fromkeys([] if several or material.comparisons else said)
    )


def _failures(cases: Sequence[ShownCase]) -> dict[str, Any] | None:
    failed = [one for one in cases if one.row["outcome"] == "failed"]
    if not failed:
        return None
    return {
        "count": f"{len(failed)} of {counted(len(cases), 'case', 'cases')} failed",
        "listed": [(one.label, one.row["reason"]) for one in failed[:WORST]],
        "more": max(0, len(failed) - WORST),
    }


def _skips(cases: Sequence[ShownCase]) -> str:
    """Return how many cases were skipped, and the commonest reasons."""
    reasons = Counter(one.row["reason"] for one in cases if one.row["outcome"] == "skipped")
    if not reasons:
        return ""
    listed = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(WORST))
    more = f"; and {counted(len(reasons) - WORST, 'other reason', 'other reasons')}" if len(reasons) > WORST else ""
    return f"{counted(reasons.total(), 'case', 'cases')} skipped: {listed}{more}"
