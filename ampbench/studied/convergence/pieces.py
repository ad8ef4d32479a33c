"""Which trainings a study is made of, in which order, and which of them a stored run lacks."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from ampbench.precisions import BASELINE
from ampbench.records.cases import Case
from ampbench.records.studies import CONTROL, REFERENCE
from ampbench.store import StoredRun
from ampbench.studied.unfinished import asked_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One training: of a case, from a seed, as its own or as another `arm`."""

    case: Case
    seed: int
    arm: str = ""

    @property
    def start(self) -> tuple[str, int]:
        """What trainings share whose weights a worker has in mind at a time: all but precision and arm."""
        return in_precision(self.case, "").case_id, self.seed

    @property
    def compared_with(self) -> "list[Piece]":
        """The trainings whose weights this one's are compared with, in the order in which they are made."""
        own = in_precision(self.case, BASELINE)
        first = [Piece(case=own, seed=self.seed, arm=arm) for arm in (REFERENCE, "")]
        return first[: first.index(self)] if self in first else first


def pieces_of(cases: Iterable[Case], first_seed: int, seeds: int) -> list[Piece]:
    """Return the trainings of `cases` from so many seeds, in their order.

    That is workload by workload and seed by seed: the fp64 reference, fp32, its control, then the other precisions, so
    that a worker has the first two before it that all others are compared with.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(in_precision(case, "").case_id, []).append(case)
    pieces = []
    for group in groups.values():
        firsts = sorted(group, key=lambda case: case.precision != BASELINE)
        for seed in range(first_seed, first_seed + seeds):
            for case in firsts:
                arms = (REFERENCE, "", CONTROL) if case.precision == BASELINE else ("",)
                pieces += [Piece(case=case, seed=seed, arm=arm) for arm in arms]
    return pieces


def unfinished(stored: StoredRun) -> list[Piece]:
    """Return the trainings that a run lacks, of cases that neither failed nor were skipped.

    Raises `UsageError` where it does not say what it was asked for.
    """
    ended = stored.given_up
    made = {
        (case_id, training.seed, training.arm)
        for case_id, trainings in stored.convergence.items()
        for training in trainings
    }
    cases = [case for case_id, case in stored.cases.items() if case_id not in ended]
    pieces = pieces_of(cases, stored.header.settings.seed, asked_of(stored, "steps", "seeds").seeds)
    return [piece for piece in pieces if (piece.case.case_id, piece.seed, piece.arm) not in made]


def in_precision(case: Case, precision: str) -> Case:
    """Return `case` as it would be in fp32, which has no scaler to leave out, by another name."""
    return dataclasses.replace(case, precision=precision, input_dtype="fp32", scaler=True)
