"""A small search space and searches in it, for tests of what is said of them."""

from typing import Any

from ampbench.instruments.keep_fp32.records import KeepSearch, SearchSpace, Trial, Unit, Weighed, Weighing
from ampbench.records.ranges import ModuleError
from tests.stored_runs import make_case

CASE = make_case("fp16_autocast", workload="net", parameters={}, batch_size=None)

SPACE = SearchSpace(
    case_id=CASE.case_id,
    units=[
        Unit(modules=["body.0"], kind="Conv2d", weight_bytes=2048, output_bytes=4096, seconds=1e-3),
        Unit(modules=["body.1"], kind="BatchNorm2d", weight_bytes=64, output_bytes=4096, seconds=1e-4),
        Unit(modules=["norm"], kind="LayerNorm", weight_bytes=64, output_bytes=512, seconds=1e-5),
        Unit(modules=["embed", "head"], kind="Embedding", weight_bytes=8192, output_bytes=512, seconds=2e-5),
    ],
    containers=["", "body"],
    errors=[
        ModuleError(module="body.0", kind="Conv2d", elements=1000, own_rel_l2=3e-4, overflowed=500),
        ModuleError(module="norm", kind="LayerNorm", elements=100, own_rel_l2=2e-3),
        ModuleError(module="head", kind="Linear", elements=0, note="it did not run"),
    ],
)


def trial(number: int, *kept: str, error: float | None = None, **more: Any) -> Trial:
    return Trial(case_id=CASE.case_id, number=number, kept=list(kept), output_rel_l2=error, **more)


TRIALS = [
    trial(0, error=3.1e-2),
    trial(1, "", error=4e-7),
    trial(2, "norm", error=1.9e-3),
    trial(3, "body", "norm", error=1.1e-3),
]


def weighed(kept: list[str], seconds: float, builds: int = 8, peak: int | None = 1 << 20) -> Weighed:
    """Return a set whose builds take about `seconds`, each a little luckier or not, as all of its pair are."""
    samples = [[seconds * (1 + 0.01 * build), 2 * seconds] for build in range(builds)]
    return Weighed(kept=kept, samples=samples, peak_bytes=peak)


def found(*kept: str, **more: Any) -> KeepSearch:
    """Return a search that found `kept`, all sets of which were weighed."""
    sets = [
        weighed([], 1e-3, peak=1 << 20),
        weighed(["norm"], 1.04e-3, peak=(1 << 20) + 512),
        weighed(["body", "norm"], 1.5e-3, peak=3 << 20),
        weighed([""], 1.62e-3, peak=2 << 20),
    ]
    fields: dict[str, Any] = {
        "case_id": CASE.case_id,
        "max_error": 2e-3,
        "objective": "speed",
        "seed": 0,
        "found": list(kept),
        "units": 1,
        "smallest": True,
        "trials": 23,
        "weighing": Weighing(case_id=CASE.case_id, weighed=sets, memory_source="profiler"),
    }
    return KeepSearch(**fields | more)
