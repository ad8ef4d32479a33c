"""The section of why: what instruments make of the runs that explain and study, and what plain runs tell by themselves.

The latter are made here: how far gradients lie from the fp64 reference's, in which parameter, and what became zero;
where GradScaler settled, and the steps it skipped afterwards; what broke, where and how; what the divergence passes had
to remark. The former are in `instruments/*/charts.py`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.core.units import UNDEFINED, counted, format_error, format_loss, format_share, format_whole
from ampbench.judge.rounds import WEIGHTS_DIFFER
from ampbench.records.labels import few
from ampbench.records.measured import Divergence, Failure, Round
from ampbench.report.facts import parts
from ampbench.report.material import Material
from ampbench.show.page import LISTED, Part, View
from ampbench.show.rows import number, precision_label


def explanation(material: Material) -> View | None:
    """Return the section of what explains; None where no run holds data for any part of it."""
    own = [(kind, part) for kind, part in parts(material) if kind.group == "explain"]
    of_cases = [part for kind, part in own if kind.of_cases]
    of_devices = [part for kind, part in own if not kind.of_cases]
    found = [*of_cases, gradients(material), scaling(material), *of_devices, failures(material), remarks(material)]
    return _section("explanation", "Explanation", found)


def studies(material: Material) -> View | None:
    """Return the section of what studies found; None where no run holds data for any part of it."""
    return _section("studies", "Studies", [part for kind, part in parts(material) if kind.group != "explain"])


def _section(id: str, title: str, found: Sequence[Part | None]) -> View | None:
    own = [part for part in found if part is not None]
    if not own:
        return None
    return View(
        id=id,
        title=title,
        template="parts.html",
        content={"parts": own, "listed": LISTED},
        charts=[chart for part in own for chart in part.charts],
        datasets={name: rows for part in own for name, rows in part.datasets.items()},
    )


NAMED = 3
"""So many of the cases that share a failure or a note are named."""


def failures(material: Material) -> Part | None:
    """Return the failures, cases that broke in the same way together."""
    together: dict[tuple[str, str, str, str], list[str]] = {}
    for case in material.cases:
        if case.row["outcome"] == "failed":
            failure = case.shown.stored.failures.get(case.row["case_id"])
            together.setdefault(_broken(failure), []).append(case.name)
    if not together:
        return None
    count = sum(map(len, together.values()))
    rows = [
        {"stage": stage, "cause": cause, "message": message, "frames": frames, "cases": _named(cases)}
        for (stage, cause, message, frames), cases in list(together.items())[:LISTED]
    ]
    ways = f", in {len(together):,} ways" if 1 < len(together) < count else ""
    return Part(
        id="failures",
        title="Failures",
        said=[f"{counted(count, 'case')} failed{ways}."],
        content={"rows": rows},
        left_out=len(together) - len(rows),
    )


def _broken(failure: Failure | None) -> tuple[str, str, str, str]:
    """Return where a case broke, by what, what it said, and its last frames; without a failure its weights differ."""
    if failure is None:
        return "round", WEIGHTS_DIFFER, "", ""
    return failure.stage, failure.cause, failure.message, "\n".join(frame.rstrip("\n") for frame in failure.frames)


def remarks(material: Material) -> Part | None:
    """Return the notes of the divergence passes, each with the cases that share it."""
    together: dict[str, list[str]] = {}
    for case in material.cases:
        found = case.shown.stored.divergence.get(case.row["case_id"])
        for note in dict.fromkeys(found.notes if found else ()):
            together.setdefault(note, []).append(case.name)
    if not together:
        return None
    ordered = sorted(together.items(), key=lambda one: -len(one[1]))
    rows = [{"note": note, "cases": _named(cases)} for note, cases in ordered[:LISTED]]
    return Part(
        id="notes", title="Notes of the divergence pass", content={"rows": rows}, left_out=len(ordered) - len(rows)
    )


def _named(cases: list[str]) -> str:
    """Return how many cases there are and the first of them: "12 cases: a, b, c and 9 more"."""
    return cases[0] if len(cases) == 1 else f"{counted(len(cases), 'case')}: {few(cases, NAMED)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """A training case: its `name`, that of its `workload` (all but the precision), and its divergence."""

    name: str
    workload: str
    precision: str
    label: str
    found: Divergence

    @property
    def error(self) -> float | None:
        return number(self.found.gradient.rel_l2)

    @property
    def flushed_share(self) -> float | None:
        flushed, elements = self.found.gradient.flushed, self.found.gradient.elements
        return flushed / elements if flushed is not None and elements else None

    @property
    def flushed(self) -> str:
        """What became zero, as "0.62% (25,317 of 4,096,000)"."""
        share = self.flushed_share
        if not share:
            return format_share(share)
        return f"{format_share(share)} ({self.found.gradient.flushed:,} of {self.found.gradient.elements:,})"

    @property
    def badness(self) -> tuple[int, float]:
        return self.found.gradient.nonfinite or 0, -1.0 if self.error is None else self.error


def gradients(material: Material) -> Part | None:
    """Return the training cases, the worst gradients first."""
    trained = _trained(material)
    if not trained:
        return None
    trained.sort(key=lambda one: one.badness, reverse=True)
    rows = [
        {
            "name": one.workload,
            "precision": one.precision,
            "label": one.label,
            "error": format_error(one.error),
            "parameter": one.found.gradient.worst_parameter or UNDEFINED,
            "worst": format_error(one.found.gradient.worst_rel_l2),
            "flushed": one.flushed,
            "nonfinite": format_whole(one.found.gradient.nonfinite),
            "loss": format_loss(one.found.loss),
            "reference": format_loss(one.found.reference.loss),
        }
        for one in trained[:LISTED]
    ]
    return Part(
        id="gradients",
        title="Where gradients go wrong",
        said=_said(trained),
        content={"rows": rows},
        left_out=len(trained) - len(rows),
    )


def _trained(material: Material) -> list[_Trained]:
    found = []
    for case in material.cases:
        one = case.shown.stored.divergence.get(case.row["case_id"])
        if one is not None and (one.gradient.elements is not None or one.loss is not None):
            found.append(
                _Trained(
                    name=case.name,
                    workload=case.bare_name,
                    precision=case.row["precision"],
                    label=precision_label(case.row),
                    found=one,
                )
            )
    return found


def _said(trained: Sequence[_Trained]) -> list[str]:
    """Return what stands out: gradients that are not finite, the largest error, the largest share flushed."""
    said = []
    broken = [one for one in trained if one.found.gradient.nonfinite]
    if broken:
        said.append(f"Gradients are not finite in {counted(len(broken), 'case')}, such as {broken[0].name}.")
    worst = max(trained, key=lambda one: one.error or 0.0)
    if worst.error:
        parameter = worst.found.gradient.worst_parameter
        where = f", most of all in {parameter}" if parameter else ""
        said.append(f"The largest gradient error is {format_error(worst.error)}: {worst.name}{where}.")
    zeroed = max(trained, key=lambda one: one.flushed_share or 0.0)
    if zeroed.flushed_share:
        said.append(f"The largest share of gradient elements flushed to zero is {zeroed.flushed}: {zeroed.name}.")
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaled:
    """A case that was trained with GradScaler: its divergence pass, if it had one, and its `rounds`."""

    name: str
    passed: Divergence | None
    rounds: Sequence[Round]

    @property
    def scales(self) -> list[float]:
        return [one.scaler_scale for one in self.rounds if one.scaler_scale is not None]

    @property
    def moves(self) -> bool:
        return len(set(self.scales)) > 1

    @property
    def known(self) -> list[int]:
        return [one.skipped_steps for one in self.rounds if one.skipped_steps is not None]

    @property
    def skipped(self) -> int:
        passed = self.passed.skipped_steps if self.passed else 0
        return (passed or 0) + sum(self.known)


def scaling(material: Material) -> Part | None:
    """Return the cases with GradScaler, those first in which it skipped steps or its scale moved."""
    scaled = _scaled(material)
    if not scaled:
        return None
    scaled.sort(key=lambda one: (not one.skipped, not one.moves))
    rows = [
        {
            "name": one.name,
            "settled": UNDEFINED if one.passed is None else _scale(one.passed.scaler_scale),
            "rounds": _range(one.scales),
            "skipped": UNDEFINED if one.passed is None else format_whole(one.passed.skipped_steps),
            "skipped_rounds": format_whole(sum(one.known) if one.known else None),
            "count": len(one.rounds),
        }
        for one in scaled[:LISTED]
    ]
    return Part(
        id="scaling",
        title="Scales that GradScaler settled at",
        said=_scales_said(scaled),
        content={"rows": rows},
        left_out=len(scaled) - len(rows),
    )


def _scaled(material: Material) -> list[_Scaled]:
    rounds: dict[tuple[str, str], list[Round]] = defaultdict(list)
    for shown in material.shown:
        for one in shown.stored.rounds:
            if one.scaler_scale is not None and not one.control:
                rounds[shown.stored.header.run, one.case_id].append(one)
    found = []
    for case in material.cases:
        stored, case_id = case.shown.stored, case.row["case_id"]
        passed, own = stored.divergence.get(case_id), rounds.get((stored.header.run, case_id), [])
        if own or (passed is not None and passed.scaler_scale is not None):
            found.append(
                _Scaled(
                    name=case.name,
                    passed=passed,
                    rounds=own,
                )
            )
    return found


def _scale(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:g}"


def _range(scales: Sequence[float]) -> str:
    """Return the scale of the rounds, its smallest and largest where it moved."""
    if not scales:
        return UNDEFINED
    return _scale(scales[0]) if len(set(scales)) == 1 else f"{_scale(min(scales))} to {_scale(max(scales))}"


def _scales_said(scaled: Sequence[_Scaled]) -> list[str]:
    moving, skipping = ([one for one in scaled if getattr(one, what)] for what in ("moves", "skipped"))
    said = [
        f"GradScaler skipped steps after its scale had settled in {counted(len(skipping), 'case')} of {len(scaled):,}, "
        f"such as {skipping[0].name}: {skipping[0].skipped:,}."
        if skipping
        else f"GradScaler skipped no step once its scale had settled, in {counted(len(scaled), 'case')}."
    ]
    if moving:
        said.append(f"The scale settled differently from round to round in {counted(len(moving), 'case')}.")
    return said
