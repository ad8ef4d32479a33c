"""Runs that explain headroom, origins and searches, made up: a field that a test does not care about has a value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ampbench.records.case import Case
from ampbench.records.kinds import KEEP_FP32, ORIGIN
from ampbench.records.ranges import ACTIVATION, LowRun, Magnitudes, ModuleError, OriginPass
from ampbench.records.run import Entry
from ampbench.store import StoredRun, gathered
from ampbench.studies.keep_fp32 import KeepSearch, Limits, SearchSpace, TimedSet, Timing, Trial, Unit
from tests.stored_runs import make_case, make_header

FP32 = make_case("fp32", phase="training")
FP16 = make_case("fp16_autocast", phase="training")


def spread(module: str, low: int, high: int, what: str = ACTIVATION, **changes: Any) -> Magnitudes:
    """Return 1000 values in each exponent from `low` to `high`, the largest at the beginning of the last one."""
    counts = [1000] * (high - low + 1)
    fields: dict[str, Any] = {
        "module": module,
        "kind": "Linear",
        "what": what,
        "elements": sum(counts),
        "largest": 2.0**high,
        "lowest": low,
        "counts": counts,
    }
    return Magnitudes(**fields | changes)


def low_run(*modules: ModuleError, precision: str = "fp16_autocast", **changes: Any) -> LowRun:
    return LowRun(precision=precision, modules=list(modules), lowered=[one.module for one in modules], **changes)


def erring(module: str, own: float | None = 1e-3, **changes: Any) -> ModuleError:
    fields: dict[str, Any] = {"kind": "Linear", "elements": 1000}
    return ModuleError(module=module, own_rel_l2=own, **fields | changes)


def originating(*modules: ModuleError, case: Case = FP16, **changes: Any) -> OriginPass:
    return OriginPass(**{"case_id": case.case_id, "modules": list(modules), "output_rel_l2": 2e-3} | changes)


def spaced(count: int = 4, case: Case = FP16) -> SearchSpace:
    units = [Unit(modules=[f"layer.{place}"], kind="Linear") for place in range(count)]
    limits = Limits(max_error=2e-3, max_gradient_error=5e-2)
    return SearchSpace(case_id=case.case_id, units=units, containers=["", "layer"], limits=limits)


def tried(*sets: Sequence[str], errors: Sequence[float | None], case: Case = FP16) -> list[Trial]:
    return [
        Trial(case_id=case.case_id, number=number, kept=list(kept), output_rel_l2=error, grad_rel_l2=error)
        for number, (kept, error) in enumerate(zip(sets, errors, strict=True))
    ]


def timed(kept: Sequence[str], seconds: float, peak_bytes: int | None = 1 << 20) -> TimedSet:
    return TimedSet(
        kept=list(kept), samples=[[seconds * (1 + build / 1000)] for build in range(8)], peak_bytes=peak_bytes
    )


def searched(*sets: TimedSet, case: Case = FP16, **changes: Any) -> KeepSearch:
    fields: dict[str, Any] = {
        "case_id": case.case_id,
        "kept": ["layer.2"],
        "minimal": True,
        "timing": Timing(sets=list(sets)) if sets else None,
    }
    return KeepSearch(**fields | changes)


TRIED = tried([], ["layer.2"], ["layer.1", "layer.2"], [""], errors=[3e-2, 1.9e-3, 1.5e-3, 4e-7])
TIMED = (timed([], 1e-3, 1 << 20), timed(["layer.2"], 1.05e-3, 5 << 18), timed([""], 1.6e-3, 1 << 21))


def _run(explains: str, cases: Sequence[Case], entries: Sequence[Entry], **header: Any) -> StoredRun:
    made = make_header(**{"run": f"why-{explains}", "explains": explains} | header)
    return gathered(Path(f"runs/{made.run}.jsonl"), made, [*cases, *entries])


def origin_run(*passes: OriginPass, cases: Sequence[Case] = (FP16,), **header: Any) -> StoredRun:
    return _run(ORIGIN, cases, passes, **header)


def keeping_run(
    *found: KeepSearch,
    cases: Sequence[Case] = (FP16,),
    trials: Sequence[Trial] = TRIED,
    units: int = 4,
    **header: Any,
) -> StoredRun:
    """Return a run of searches, each case's over `units` modules and with the same `trials`."""
    spaces = [spaced(units, case) for case in cases]
    tried = [replace(one, case_id=case.case_id) for case in cases for one in trials]
    return _run(KEEP_FP32, cases, [*spaces, *tried, *found], **header)
