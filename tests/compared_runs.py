"""Pairs of stored runs for tests of comparisons: times given by block, everything else alike unless said otherwise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ampbench.records.case import Case
from ampbench.records.measured import Round
from ampbench.records.run import Arm, Header
from ampbench.store import StoredRun
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round

FP32 = make_case("fp32")
BF16 = make_case("bf16_autocast")


def noisy(seconds: float, count: int = 16, spread: float = 0.002, seed: int = 0) -> list[float]:
    return [float(value) for value in seconds * np.exp(np.random.default_rng(seed).normal(0, spread, count))]


def rounds_of(case: Case, seconds: Sequence[float], **changes: Any) -> list[Round]:
    return [make_round(case, value, number, **changes) for number, value in enumerate(seconds)]


def make_run(
    times: "Times",
    control: Sequence[float] = (),
    fresh: Sequence[float] = (),
    header: Header | None = None,
    peak_bytes: int = 1_000_000,
    **divergence: Any,
) -> StoredRun:
    """Return a run with the block values `times` of each case; `control` and `fresh` are of the first of them."""
    cases = {case.case_id: case for case in times.cases}
    first = next(iter(cases.values()))
    rounds = [
        one for case, seconds in zip(cases.values(), times.values(), strict=True) for one in rounds_of(case, seconds)
    ]
    rounds += rounds_of(first, control, control=True) + rounds_of(first, fresh, confirmation=True)
    fields = {
        "output_rel_l2": 4e-3,
        "output_floor_rel_l2": 1e-3,
        "output_fp32_rel_l2": 1e-7,
        "repeatable": True,
    } | divergence
    return StoredRun(
        path=Path("runs/run.jsonl"), header=header or make_header(), cases=cases, rounds=rounds,
        memory={case_id: make_memory(case, peak_bytes) for case_id, case in cases.items()},
        divergence={case_id: make_divergence(case, **fields) for case_id, case in cases.items()}, failures={},
        skips={}, footers=[COMPLETE], cut=False,
    )  # fmt: skip


class Times(dict[str, Sequence[float]]):
    def __init__(self, *pairs: tuple[Case, Sequence[float]]):
        super().__init__({case.case_id: seconds for case, seconds in pairs})
        self.cases = [case for case, _ in pairs]


def arm(name: str = "baseline", session: str = "s", **settings: str) -> Arm:
    return Arm(session=session, name=name, given=["here"], settings=settings)


def arms(**settings: str) -> tuple[Header, Header]:
    """Return the headers of the two arms of one session; `settings` are the candidate's."""
    return make_header(run="base", arm=arm()), make_header(run="new", arm=arm("candidate", **settings))


def environment(header: Header, **changes: Any) -> Header:
    return replace(header, environment=replace(header.environment, **changes))
