"""Small records for tests of the store and of frames: every field that a test does not care about has a value."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from ampbench.records.case import Case, Environment
from ampbench.records.measured import Divergence, MemoryPass, ReferenceStep, Round
from ampbench.records.run import SCHEMA, Entry, Footer, Header, Selection, Settings
from ampbench.store import RunWriter, StoredRun, gathered
from ampbench.studies.ceilings import Attained, Ceiling

RUN = "20260131T120000Z-bench-1f9a3c"
COMPLETE = Footer(ended="complete", finished_at="2026-01-31T12:05:00Z")


def make_header(**changes: Any) -> Header:
    environment = Environment(
        host="bench", system="Linux", cpu="AMD EPYC", cpu_count=2, python_version="3.11.7", torch_version="2.15.0",
        numpy_version="2.4.6", threads=2,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "schema": SCHEMA, "run": RUN, "ampbench_version": "0.1.0", "started_at": "2026-01-31T12:00:00Z",
        "selection": Selection(), "settings": Settings(), "environment": environment,
    }  # fmt: skip
    if changes.get("asked") is not None:
        changes["asked"] = to_builtins(changes["asked"])
    return Header(**fields | changes)


def make_case(precision: str = "fp32", **changes: Any) -> Case:
    fields: dict[str, Any] = {
        "workload": "linear_chain", "family": "linear", "parameters": {"width": 512, "depth": 4},
        "precision": precision, "device": "cpu", "phase": "inference", "path": "eager", "batch_size": 8,
        "input_dtype": "fp32", "memory_format": "contiguous",
    }  # fmt: skip
    return Case(**fields | changes)


def make_round(case: Case, seconds: float = 1e-3, number: int = 0, **changes: Any) -> Round:
    fields: dict[str, Any] = {
        "case_id": case.case_id, "round": number, "server": 0, "samples": [[seconds]], "steps_per_sample": [1],
        "warmup_steps": [1], "items_per_step": 8.0, "weights_digest": "aa", "seconds": 1.0,
        "finished_at": "2026-01-31T12:01:00Z",
    }  # fmt: skip
    return Round(**fields | changes)


def make_memory(
    case: Case, peak_bytes: int, source: str = "profiler", flops: dict[str, int] | None = None, **changes: Any
) -> MemoryPass:
    return MemoryPass(
        case_id=case.case_id,
        source=source,
        peak_bytes=peak_bytes,
        buffer_bytes=0,
        input_bytes=min(peak_bytes, 1),
        flops=flops,
        **{"parameter_bytes": min(peak_bytes, 1), "flops_by_operation": None if flops is None else {"matmul": flops}}
        | changes,
    )


def make_ceiling(dtype: str, rate: float, operation: str = "matmul", **changes: Any) -> Ceiling:
    """Return a ceiling of the CPU, of `rate` FLOP/s or bytes per second."""
    attained = [Attained(size="1024x1024x1024", work=round(rate), samples=[2.0, 1.0])]
    fields = {"device": "cpu", "operation": operation, "dtype": dtype, "threads": 2, "attained": attained}
    return Ceiling(**fields | changes)


_OF_REFERENCE = {"output_reference_norm": "output_norm", "grad_reference_norm": "grad_norm"}
_OF_REFERENCE |= {name: name for name in ("output_shapes", "output_sketch", "grad_sketch")}
_OF_OUTPUT = {"outputs": "tensors"}
_OF_OUTPUT |= {name: name for name in ("predictions", "further", "argmax_agreeing", "argmax_decisions", "near_ties")}


def change_divergence(divergence: Divergence, **changes: Any) -> Divergence:
    """Return a divergence with changes; those of its parts as `output_rel_l2`, `grad_elements`, `reference_dtype`."""
    parts: dict[str, dict[str, Any]] = {"reference": {}, "output": {}, "gradient": {}}
    own = {}
    for name, value in changes.items():
        part, _, field = name.partition("_")
        if name in _OF_REFERENCE:
            parts["reference"][_OF_REFERENCE[name]] = value
        elif name in _OF_OUTPUT:
            parts["output"][_OF_OUTPUT[name]] = value
        elif field and part in ("reference", "output", "grad"):
            parts["gradient" if part == "grad" else part][field] = value
        else:
            own[name] = value
    own |= {part: structs.replace(getattr(divergence, part), **each) for part, each in parts.items() if each}
    return structs.replace(divergence, **own)


def make_divergence(case: Case, **changes: Any) -> Divergence:
    reference = ReferenceStep(device="cpu", output_norm=1.5)
    made = Divergence(case_id=case.case_id, reference=reference, weights_digest="aa", inputs_digest="bb")
    return change_divergence(made, **{"loss": 1.0 if "grad_elements" in changes else None} | changes)


def holding(run: StoredRun, *records: Entry) -> StoredRun:
    """Return a run that also holds what explains or studies."""
    return replace(run, found=gathered(run.path, run.header, records, run).found)


def write_run(results: Path, cases: list[Case], *entries: Entry, **header: Any) -> Path:
    with RunWriter.create(results, make_header(**header), cases) as writer:
        writer.append(*entries)
    return writer.path
