"""What studies on a page found: trainings, scaler settings, scopes, stored inputs, ceilings, a document's claims."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampbench.labels import case_labels, told_apart
from ampbench.records.environments import DeviceDescription
from ampbench.records.studies import Ceiling, ScalerRun, ScopePass, StoragePass
from ampbench.report.explained import Told, place_of, runs_of, told
from ampbench.report.material import Material, run_name
from ampbench.store import StoredRun
from ampbench.studied.ceilings.rates import described, rate, top
from ampbench.studied.ceilings.sentences import ceilings_said
from ampbench.studied.claims import Claim, documented_claims
from ampbench.studied.convergence.learning import Learned, learned
from ampbench.studied.convergence.sentences import verdict_said
from ampbench.studied.input_storage.sentences import LOSSY, comes_to, storage_said
from ampbench.studied.scaler.outcomes import outcomes
from ampbench.studied.scaler.sentences import scaler_said
from ampbench.studied.scope.sentences import comparisons, scope_said
from ampbench.units import counted
from ampbench.verdicts import Verdict

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
    return sorted(told(material, lambda run: run.scaler), key=_failing, reverse=True)


def _failing(one: Told[list[ScalerRun]]) -> int:
    return sum(each.fails for each in outcomes(one.found))


def scopes(material: Material) -> list[Told[ScopePass]]:
    """Return the cases that were trained in several scopes of autocast, those first that read stale weights."""
    return sorted(told(material, lambda run: run.scope), key=lambda one: stale(one.found), reverse=True)


def stale(found: ScopePass) -> int:
    """Return how many weights the worst scope reads as old copies."""
    return max((row.stale_weights or 0 for row in comparisons(found)), default=0)


def stored_inputs(material: Material) -> list[Told[StoragePass]]:
    """Return the cases that were fed inputs stored in half, those first that lose information by it."""
    return sorted(told(material, lambda run: run.input_storage), key=_loss)


def _loss(one: Told[StoragePass]) -> tuple[bool, bool]:
    return comes_to(one.found) != LOSSY, one.found.identical is True


def device_ceilings(material: Material) -> list[Ceilings]:
    """Return the devices of which ceilings are known, with these; a CPU for each number of threads."""
    highest: dict[tuple[str, str, str, int | None], dict[tuple[str, str], Ceiling]] = {}
    devices: dict[tuple[str, str, str, int | None], DeviceDescription] = {}
    for run in runs_of(material):
        for one in run.ceilings:
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
