"""What stored trainings say of the cases of a run that measured: a whole training counts for more than one step."""

from collections.abc import Iterable
from dataclasses import dataclass

from ampbench.records.runs import CONVERGENCE
from ampbench.store import StoredRun
from ampbench.studied.convergence.learning import Learned, Learning, learned
from ampbench.units import counted
from ampbench.verdicts import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a study found of a case: whether it `trains` as fp32 does, and why not ("": it does).

    `study` names it: "study 8879c8, 300 steps from 3 seeds".
    """

    trains: bool
    study: str
    reason: str = ""


def trained_cases(measured: StoredRun, studies: Iterable[StoredRun]) -> dict[str, Trained]:
    """Return by case id what `studies` found of the cases of a run that measured; of several the newest counts.

    They count where they were made on the same host with the same torch, of the same case with the same weights, and
    where they tell whether it trains as fp32 does.
    """
    found: dict[str, Trained] = {}
    for study in sorted(studies, key=lambda one: (one.header.started_at, one.header.run)):
        if study.header.explains != CONVERGENCE or _place(study) != _place(measured):
            continue
        for one in learned(study):
            for row in one.judged:
                own = measured.divergence.get(row.case_id)
                same = own is not None and own.weights_digest in {each.weights_digest for each in row.trainings}
                if same and row.trains is not None:
                    found[row.case_id] = _trained(study, one, row)
    return found


def _trained(study: StoredRun, one: Learned, row: Learning) -> Trained:
    assert row.trains is not None
    name = f"study {study.header.run.rpartition('-')[2]}, {counted(one.steps, 'step')} from"
    worse = row.reason if row.verdict is Verdict.REGRESSED else row.loss_reason
    return Trained(
        trains=row.trains,
        study=f"{name} {counted(len(row.trainings), 'seed')}",
        reason="" if row.trains else worse,
    )


def _place(stored: StoredRun) -> tuple[str, str]:
    return stored.header.environment.host, stored.header.environment.torch_version
