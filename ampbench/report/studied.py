"""What studies on a page found: trainings, scaler settings, scopes, stored inputs, ceilings, a document's claims."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.labels import case_labels
from ampbench.records.environments import DeviceDescription
from ampbench.records.studies import Ceiling, ScalerRun, ScopePass, StoragePass
from ampbench.report.explained import Told, place_of, runs_of, told
from ampbench.report.material import Material
from ampbench.store import StoredRun
from ampbench.studied.ceiling_tables import described
from ampbench.studied.convergence import Learned, learned
from ampbench.studied.documented import Claim, documented_claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A workload trained on a device, and what its trainings come to. `number` counts from 0."""

    number: int
    name: str
    run: StoredRun
    found: Learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a device of a machine attains: of several ceilings of one operation and dtype the newest."""

    name: str
    device: DeviceDescription
    ceilings: Sequence[Ceiling]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A run that measured the documented workload, and what became of the document's claims."""

    name: str
    claims: Sequence[Claim]


def trainings(material: Material) -> list[Trained]:
    """Return the workloads that were trained: of one that a newer run of its machine trained again, only that."""
    found: list[tuple[StoredRun, Learned, str]] = []
    seen: list[tuple[tuple[str, str], set[str]]] = []
    for run in reversed(list(runs_of(material))):
        for one in learned(run):
            ids = {row.case_id for row in one.rows}
            if not any(place_of(run) == place and ids <= known for place, known in seen):
                found.append((run, one, one.rows[0].case_id))
                seen.append((place_of(run), ids))
    labels = case_labels((run.cases[case_id] for run, _, case_id in found), precision=False)
    counts = Counter(labels[case_id] for _, _, case_id in found)
    return [
        Trained(
            number=number,
            name=f"{labels[case_id]} · {run.header.label or run.header.run}"
            if counts[labels[case_id]] > 1
            else labels[case_id],
            run=run,
            found=one,
        )
        for number, (run, one, case_id) in enumerate(reversed(found))
    ]


def scalings(material: Material) -> list[Told[list[ScalerRun]]]:
    """Return the cases that were trained with several settings of the scaler, the oldest first."""
    return told(material, lambda run: run.scalings)


def scopes(material: Material) -> list[Told[ScopePass]]:
    """Return the cases that were trained with autocast entered around more or less of a step, the oldest first."""
    return told(material, lambda run: run.scopes)


def storages(material: Material) -> list[Told[StoragePass]]:
    """Return the cases that were fed inputs stored in half, the oldest first."""
    return told(material, lambda run: run.storages)


def ceilings(material: Material) -> list[Ceilings]:
    """Return the devices of which ceilings are known, with these."""
    newest: dict[tuple[str, str, str], dict[tuple[str, str], Ceiling]] = {}
    devices: dict[tuple[str, str, str], DeviceDescription] = {}
    for run in runs_of(material):
        for one in run.ceilings:
            key = (*place_of(run), one.device)
            devices[key] = described(run.header.environment, one.device)
            newest.setdefault(key, {})[one.operation, one.dtype] = one
    several = len({key[:2] for key in newest}) > 1
    return [
        Ceilings(
            name=f"{key[2]} of {key[0]}, torch {key[1]}" if several else key[2],
            device=devices[key],
            ceilings=list(found.values()),
        )
        for key, found in newest.items()
    ]


def claimed(material: Material) -> list[Claimed]:
    """Return the runs shown that measured the documented workload in a low precision, the oldest first."""
    found = [Claimed(name=one.name, claims=documented_claims(one.stored, one.rows)) for one in material.shown]
    return [one for one in found if one.claims]
