"""What was explained and studied of the runs of a report.

What the runs on a page tell of why: passes and searches, probes of autocast's rules, a comparison's reasons.

What studies on a page found: trainings, scaler settings, scopes, stored inputs, ceilings, a document's claims.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ampbench.base.units import counted
from ampbench.instruments.casts.findings import casts_said
from ampbench.instruments.ceilings.findings import ceilings_said, described, rate, top
from ampbench.instruments.claims import Claim, documented_claims
from ampbench.instruments.convergence.learning import Learned, learned, told_trainings
from ampbench.instruments.convergence.show import verdict_said
from ampbench.instruments.input_storage.findings import LOSSY, comes_to, storage_said
from ampbench.instruments.scaler.findings import outcomes, scaler_said
from ampbench.instruments.scope.findings import comparisons, scope_said
from ampbench.present.page import Changed, Told, Untold
from ampbench.records.case import Case, DeviceDescription
from ampbench.records.cast_totals import Saving, Totals, savings, totals
from ampbench.records.casts import CastPass
from ampbench.records.keeping import KeepSearch, SearchSpace, Trial
from ampbench.records.kinds import CONVERGENCE, KINDS
from ampbench.records.labels import NOT_REACHED, case_labels, told_apart
from ampbench.records.ranges import OriginPass, RangePass
from ampbench.records.rules import FAKE, RuleProbe
from ampbench.records.studies import Ceiling, ScalerRun, ScopePass, StoragePass
from ampbench.records.verdicts import Comparison, Verdict
from ampbench.report.material import Material, ShownCase, run_name
from ampbench.store import StoredRun

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced(Told[CastPass]):
    """A case that a run traced: what its casts add up to, and what could be saved, the largest first."""

    whole: Totals
    savings: Sequence[Saving]

    @property
    def said(self) -> str:
        """What its casts cost, in a line."""
        return casts_said(self.found, self.case, self.whole, self.savings)

    @property
    def fake(self) -> bool:
        """Whether fake tensors stood in, so that nothing ran on hardware."""
        return self.found.how == FAKE


def found_of(kind: str, run: StoredRun) -> Mapping[str, Any]:
    """Return what a run holds of cases for a page to tell, by what it explains or studies."""
    found: Mapping[str, Any] = told_trainings(run) if kind == CONVERGENCE else run.found.get(KINDS[kind].found.line, {})
    return found


def runs_of(material: Material) -> Iterator[StoredRun]:
    """Yield the runs on the page, those that only explain among them, the oldest first."""
    every = [*(shown.stored for shown in material.shown), *material.explanations]
    yield from sorted(every, key=lambda one: one.header.started_at)


def told(material: Material, of: Callable[[StoredRun], Mapping[str, T]]) -> list[Told[T]]:
    """Return what runs hold of cases: of several of one case, host and torch version the newest, the oldest first."""
    found = list(_passes(material, of))
    labels = case_labels(run.cases[case_id] for run, case_id, _ in found)
    names = told_apart([labels[case_id] for _, case_id, _ in found], (run_name(run) for run, _, _ in found))
    return [
        Told(number=number, name=name, case=run.cases[case_id], run=run, found=one)
        for number, (name, (run, case_id, one)) in enumerate(zip(names, found, strict=True))
    ]


def traced(material: Material) -> list[Traced]:
    """Return the traced cases, those first whose casts take the most time or, untimed, move the most bytes."""
    cases = [
        Traced(
            number=one.number,
            name=one.name,
            case=one.case,
            run=one.run,
            found=one.found,
            whole=totals(one.found.trace),
            savings=savings(one.found.trace),
        )
        for one in told(material, lambda run: run.of(CastPass))
    ]
    return sorted(cases, key=lambda one: (-(one.whole.seconds or 0.0), -one.whole.bytes_moved, one.number))


def headrooms(material: Material) -> list[Told[RangePass]]:
    """Return the cases whose magnitudes were looked at, the oldest first."""
    return told(material, lambda run: run.of(RangePass))


def origins(material: Material) -> list[Told[OriginPass]]:
    """Return the cases the origin of whose errors was looked for, the oldest first."""
    return told(material, lambda run: run.of(OriginPass))


def searches(material: Material) -> list[Told[KeepSearch]]:
    """Return the cases for which a search for modules to keep in fp32 came to its end, the oldest first."""
    return told(material, lambda run: run.of(KeepSearch))


def probes(material: Material) -> list[RuleProbe]:
    """Return the probes of autocast's rules: of several of one torch version and device type the newest."""
    newest: dict[tuple[str, str], RuleProbe] = {}
    for run in runs_of(material):
        newest |= {(one.torch_version, one.device): one for one in run.of(RuleProbe).values()}
    return list(newest.values())


def untold(material: Material, kind: str) -> list[Untold]:
    """Return the cases that runs that explain `kind` ("casts", …) failed to explain, skipped or did not finish."""
    found: dict[str, Untold] = {}
    for run in material.explanations:
        if run.header.explains != kind:
            continue
        labels = case_labels(run.cases.values())
        found |= {case_id: Untold(name=labels[case_id], reason=_reason(run, case_id)) for case_id in run.cases}
    if not found:
        return []
    known = {case_id for run in runs_of(material) for case_id in found_of(kind, run)}
    return [one for case_id, one in found.items() if case_id not in known]


def changed(material: Material) -> list[Changed]:
    """Return what comparisons tell of why cases differ from the baseline's, case by case."""
    cases: dict[str, Case] = {}
    sentences: dict[str, list[str]] = {}
    for one in _comparisons(material):
        own = material.baseline.cases if material.baseline else {}
        for case_id, said in one.explained.items():
            if (case := one.candidates.get(case_id, own.get(case_id))) is not None and said:
                cases[case_id] = case
                sentences.setdefault(case_id, []).extend(said)
    labels = case_labels(cases.values())
    return [
        Changed(name=labels[cases[case_id].case_id], sentences=list(dict.fromkeys(said)))
        for case_id, said in sentences.items()
    ]


def with_rules(material: Material) -> list[Comparison]:
    """Return the comparisons of runs that both probed autocast's rules on a device."""
    return [one for one in _comparisons(material) if one.rule_devices or one.rule_changes]


def reasons(case: ShownCase) -> Sequence[str]:
    """Return why a case is not what the baseline's was, as far as the comparison tells: sentences."""
    comparison = case.shown.comparison
    if comparison is None or case.baseline_id is None:
        return ()
    return comparison.explained.get(case.baseline_id, ())


def contents(material: Material) -> list[str]:
    """Return in a few words what explains: how many cases' casts and so on, the rules and ceilings of which devices.

    Cases that failed or were skipped are not counted, though a part of them may be there.
    """
    counts = {
        kind: sum(case_id not in ended_early(run) for run, case_id, _ in _passes(material, partial(found_of, kind)))
        for kind, of in KINDS.items()
        if of.of_cases
    }
    said = [f"{KINDS[kind].contents} {counted(count, 'case')}" for kind, count in counts.items() if count]
    for kind, of in KINDS.items():
        if not of.of_cases and (
            devices := dict.fromkeys(key for run in runs_of(material) for key in found_of(kind, run))
        ):
            said.append(f"{of.contents} {', '.join(devices)}")
    return said


def strangers(material: Material, kind: str) -> list[str]:
    """Return what explained `kind` ("casts", …) on another machine, or with another torch, than what measured."""
    own = {place_of(shown.stored) for shown in material.shown}
    places = dict.fromkeys(place_of(run) for run, _, _ in _passes(material, partial(found_of, kind)))
    if not own:
        return []
    return [f"torch {version or 'of an unknown version'} on {host}" for host, version in places
            if (host, version) not in own]  # fmt: skip


def _reason(run: StoredRun, case_id: str) -> str:
    """Return why a run has no result of a case."""
    if (skip := run.skips.get(case_id)) is not None:
        return skip.reason
    if (failure := run.failures.get(case_id)) is not None:
        return failure.said
    trials = len(run.several_of(Trial).get(case_id, []))
    if trials or case_id in run.of(SearchSpace):
        kept = f"{counted(trials, 'trial')} {'is' if trials == 1 else 'are'}" if trials else "no trial is"
        return f"the search did not end; {kept} stored"
    return NOT_REACHED


def _comparisons(material: Material) -> list[Comparison]:
    return [*material.comparisons, *material.explained]


def _passes(material: Material, of: Callable[[StoredRun], Mapping[str, T]]) -> Iterator[tuple[StoredRun, str, T]]:
    """Yield what runs found of the cases on the page: of several of one case, host and torch version the newest."""
    shown = {id(one.stored): {row["case_id"] for row in one.rows} for one in material.shown}
    newest: dict[tuple[str, str, str], tuple[StoredRun, str, T]] = {}
    for run in runs_of(material):
        wanted = shown.get(id(run))
        for case_id, found in of(run).items():
            if wanted is None or case_id in wanted:
                newest[*place_of(run), case_id] = run, case_id, found
    yield from newest.values()


def ended_early(run: StoredRun) -> set[str]:
    """Return the cases that a run that explains or studies skipped, or that failed in it."""
    return {*run.failures, *run.skips} if run.header.explains else set()


def place_of(run: StoredRun) -> tuple[str, str]:
    """Return the host and the torch version of a run."""
    environment = run.header.environment
    return environment.host, environment.torch_version


_WORST_FIRST = (Verdict.REGRESSED, Verdict.INCOMPARABLE, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.UNCHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A workload trained on a device, and what its trainings come to. `number` counts from 0."""

    number: int
    name: str
    run: StoredRun
    found: Learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a device of a machine attains: of several ceilings of one operation and dtype the highest.

    Whatever else runs only delays.
    """

    name: str
    device: DeviceDescription
    ceilings: Sequence[Ceiling]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A run that measured the documented workload, and what became of the document's claims."""

    name: str
    claims: Sequence[Claim]


def trainings(material: Material) -> list[Trained]:
    """Return the workloads that were trained, those first in which a precision does not train as fp32 does.

    Of one that a newer run of its machine trained again, only that.
    """
    found: list[tuple[StoredRun, Learned, str]] = []
    seen: list[tuple[tuple[str, str], set[str]]] = []
    for run in reversed(list(runs_of(material))):
        for one in learned(run):
            ids = {row.case_id for row in one.rows}
            if not any(place_of(run) == place and ids <= known for place, known in seen):
                found.append((run, one, one.rows[0].case_id))
                seen.append((place_of(run), ids))
    found.reverse()
    labels = case_labels((run.cases[case_id] for run, _, case_id in found), precision=False)
    names = told_apart([labels[case_id] for _, _, case_id in found], (run_name(run) for run, _, _ in found))
    every = [
        Trained(number=number, name=name, run=run, found=one)
        for number, (name, (run, one, _)) in enumerate(zip(names, found, strict=True))
    ]
    return sorted(every, key=_badness)


def _badness(one: Trained) -> int:
    """Return the place of the worst verdict on a score or a training loss."""
    verdicts = [verdict for row in one.found.judged for verdict in (row.verdict, row.loss_verdict) if verdict]
    return min(map(_WORST_FIRST.index, verdicts), default=len(_WORST_FIRST))


def scaler_runs(material: Material) -> list[Told[list[ScalerRun]]]:
    """Return the cases that were trained with several settings of the scaler, those first of which most fail."""
    return sorted(told(material, lambda run: run.several_of(ScalerRun)), key=_failing, reverse=True)


def _failing(one: Told[list[ScalerRun]]) -> int:
    return sum(each.fails for each in outcomes(one.found))


def scopes(material: Material) -> list[Told[ScopePass]]:
    """Return the cases that were trained in several scopes of autocast, those first that read stale weights."""
    return sorted(told(material, lambda run: run.of(ScopePass)), key=lambda one: stale(one.found), reverse=True)


def stale(found: ScopePass) -> int:
    """Return how many weights the worst scope reads as old copies."""
    return max((row.stale_weights or 0 for row in comparisons(found)), default=0)


def stored_inputs(material: Material) -> list[Told[StoragePass]]:
    """Return the cases that were fed inputs stored in half, those first that lose information by it."""
    return sorted(told(material, lambda run: run.of(StoragePass)), key=_loss)


def _loss(one: Told[StoragePass]) -> tuple[bool, bool]:
    return comes_to(one.found) != LOSSY, one.found.identical is True


def device_ceilings(material: Material) -> list[Ceilings]:
    """Return the devices of which ceilings are known, with these; a CPU for each number of threads."""
    highest: dict[tuple[str, str, str, int | None], dict[tuple[str, str], Ceiling]] = {}
    devices: dict[tuple[str, str, str, int | None], DeviceDescription] = {}
    for run in runs_of(material):
        for one in run.every(Ceiling):
            key = (*place_of(run), one.device, one.threads if one.device == "cpu" else None)
            devices[key] = described(run.header.environment, one.device)
            own = highest.setdefault(key, {})
            known = own.get((one.operation, one.dtype))
            if known is None or _attained(one) >= _attained(known):
                own[one.operation, one.dtype] = one
    places = len({key[:2] for key in highest})
    counts = Counter(key[:3] for key in highest)
    found = []
    for key, own in highest.items():
        host, version, device, threads = key
        name = f"{device} of {host}, torch {version}" if places > 1 else device
        name += f", {counted(threads, 'thread')}" if counts[key[:3]] > 1 and threads is not None else ""
        found.append(Ceilings(name=name, device=devices[key], ceilings=list(own.values())))
    return found


def _attained(found: Ceiling) -> float:
    attained = top(found)
    return (rate(attained) or 0.0) if attained is not None else 0.0


def claimed(material: Material) -> list[Claimed]:
    """Return the runs shown that measured the documented workload in a low precision, the oldest first."""
    found = [Claimed(name=one.name, claims=documented_claims(one.stored, one.rows)) for one in material.shown]
    return [one for one in found if one.claims]


def first_finding(material: Material) -> str:
    """Return the first thing to know of the first study in the order of the page, behind its case's name; "": none."""
    return next((f"{name}: {said}" for name, said in _findings(material) if said), "")


def _findings(material: Material) -> Iterator[tuple[str, str]]:
    """Yield the first sentences of studies with what they are of, in the order of the page."""
    for trained in trainings(material):
        yield trained.name, verdict_said(trained.found)
    for scaling in scaler_runs(material):
        yield scaling.name, next(iter(scaler_said(scaling.case, scaling.found)), "")
    for scope in scopes(material):
        yield scope.name, next(iter(scope_said(scope.case, scope.found)), "")
    for storage in stored_inputs(material):
        yield storage.name, next(iter(storage_said(storage.case, storage.found)), "")
    for each in device_ceilings(material):
        yield each.name, next(iter(ceilings_said(each.device, each.ceilings)), "")
