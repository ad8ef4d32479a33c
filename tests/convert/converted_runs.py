"""Runs as they are read, made without a file, for tests of the formats."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ampbench.records.case import Case
from ampbench.records.measured import Failure, Skip
from ampbench.store import StoredRun
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
"""Everything that can be stored: lone surrogates are escaped when a run is written."""

CASE = make_case("fp32")
BF16 = make_case("bf16_pure")
FAILED = make_case("fp16_pure")
SKIPPED = make_case("tf32")


def stored_run(
    times: Iterable[tuple[Case, Sequence[float]]],
    failures: Sequence[Failure] = (),
    skips: Sequence[Skip] = (),
    peak_bytes: int | None = 4096,
    **header: Any,
) -> StoredRun:
    """Return a run of cases with the seconds of each of their rounds, a memory pass and a divergence."""
    timed = list(times)
    measured = [case for case, _ in timed]
    others = [FAILED] * bool(failures) + [SKIPPED] * bool(skips)
    cases = {case.case_id: case for case in [*measured, *others]}
    return StoredRun(
        path=Path("run.jsonl"),
        header=make_header(**header),
        cases=cases,
        rounds=[
            make_round(case, seconds=value, number=number)
            for case, values in timed
            for number, value in enumerate(values)
        ],
        memory={} if peak_bytes is None else {case.case_id: make_memory(case, peak_bytes) for case in measured},
        divergence={case.case_id: make_divergence(case, output_rel_l2=2e-3) for case in measured},
        failures={one.case_id: one for one in failures},
        skips={one.case_id: one for one in skips},
        footers=[COMPLETE],
        cut=False,
    )


def mixed_run() -> StoredRun:
    """Return a run of two measured cases, one that failed and one that was skipped."""
    failure = Failure(
        case_id=FAILED.case_id, stage="round", cause="exception", message="boom <&>", frames=["File a.py", "  x = 1"]
    )
    skip = Skip(case_id=SKIPPED.case_id, reason="this CPU has no tf32")
    times = [(CASE, [1.0e-3, 1.1e-3, 1.2e-3]), (BF16, [5e-4, 6e-4, 5e-4, 9e-4])]
    return stored_run(times, [failure], [skip], commit="0123abc-dirty", label="nightly")


def named_run(name: str) -> StoredRun:
    """Return a run of one case whose workload has this name."""
    return stored_run([(make_case("fp32", workload=name), [1e-3, 1.1e-3, 1.2e-3])])
