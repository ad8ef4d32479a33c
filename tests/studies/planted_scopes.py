"""A pass of scopes in which each shows the cost that it is known for, and the recommended one none."""

from typing import Any

from ampbench.records.case import Case
from ampbench.studies.scope import (
    FORWARD,
    FORWARD_AND_LOSS,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    ScopePass,
    ScopeRun,
)
from tests.stored_runs import make_case

CASE = make_case("bf16_autocast", workload="net", parameters={}, phase="training", batch_size=None)


def timed(factor: float) -> list[list[float]]:
    """Return eight builds that take `factor` times as long as the recommended scope, within a percent."""
    return [[1e-3 * factor * (1 + 1e-3 * build)] for build in range(8)]


def run(scope: str, factor: float = 1.0, **changes: Any) -> ScopeRun:
    """Return a run that shows no cost, unless `changes` say otherwise."""
    fields: dict[str, Any] = {
        "scope": scope, "casts": [15] * 4, "cast_bytes": [1000] * 4, "stale_weights": [0] * 4,
        "samples": timed(factor), "peak_bytes": [4096] * 4, "alive_bytes": [0] * 4,
        "dtypes": {"output": "bf16", "loss": "fp32", "gradients": "fp32"}, "output_rel_l2": 4e-3,
        "loss_rel_error": 5e-6, "grad_rel_l2": 5e-3, "update_rel_l2": 0.01,
    }  # fmt: skip
    return ScopeRun(**fields | changes)


def scope_pass(case: Case = CASE, **changes: ScopeRun) -> ScopePass:
    """Return a pass in which `changes`, by "forward" and so on, stand in the place of runs."""
    runs = {
        "forward": run(
            FORWARD, casts=[13] * 4, dtypes={"output": "bf16", "loss": "bf16", "gradients": "fp32"}, loss_rel_error=5e-3
        ),
        "best": run(FORWARD_AND_LOSS),
        "backward": run(WITH_BACKWARD, 1.25, casts=[21] * 4, peak_bytes=[5120] * 4),
        "whole": run(
            WHOLE_LOOP, 0.9, casts=[15, 9, 9, 9], stale_weights=[0, 6, 6, 6], peak_bytes=[4106, 4116, 4116, 4116],
            alive_bytes=[512] * 4, update_rel_l2=0.9,
        ),
        "uncached": run(UNCACHED_LOOP, casts=[17] * 4),
    }  # fmt: skip
    return ScopePass(case_id=case.case_id, steps=4, scopes=list((runs | changes).values()), notes=["dropout is off"])
