"""pytest-benchmark's JSON: written of a run, and read back as one.

Source: pytest-benchmark 5.3 (`plugin.pytest_benchmark_generate_json`, `stats.Metadata`, `utils.get_commit_info`). What
is written can be read by `pytest-benchmark compare` and github-action-benchmark's tool `pytest`: one of its rounds is
one of ampbench's, and `data` holds what the rounds are worth in seconds per step, so `iterations` is 1. What is read
back was written so, or by ampbench's plug-in for pytest: each benchmark's `extra_info` then holds the case.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ampbench import stats
from ampbench.convert.pytest_reading import FORMAT_VERSION, KEY, PROGRAM, UNVERSIONED, read_run_json
from ampbench.convert.pytest_statistics import statistics_of
from ampbench.convert.selection import Row, Selected, defined
from ampbench.metrics import METRICS
from ampbench.records.cases import Case
from ampbench.records.divergences import Divergence
from ampbench.records.environments import Environment
from ampbench.records.measurements import MemoryPass, Round
from ampbench.records.runs import DIRTY, Header

__all__ = ["FORMAT_VERSION", "KEY", "PROGRAM", "case_info", "machine_info", "read_run_json", "run_json"]


def run_json(selected: Selected) -> str:
    """Return a run's timed cases with full statistics; the other metrics are in each one's `extra_info`."""
    header = selected.stored.header
    rounds: dict[str, list[Round]] = {}
    for each in selected.stored.rounds:
        if not each.control:
            rounds.setdefault(each.case_id, []).append(each)
    document = {
        "machine_info": machine_info(header.environment),
        "commit_info": _commit(header),
        "benchmarks": [_benchmark(selected, row, rounds[row["case_id"]]) for row in selected.timed],
        "datetime": header.started_at,
        "version": FORMAT_VERSION,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def case_info(
    case: Case,
    *,
    items_per_step: float,
    weights_digest: str,
    data: Literal["rounds", "samples"],
    memory: MemoryPass | None,
    divergence: Divergence | None,
    notes: Sequence[str],
    metrics: Mapping[str, float],
) -> dict[str, Any]:
    """Return the whole `extra_info` of a benchmark: `metrics` by their columns' names, and what `read_run_json` needs.

    `data` says what the benchmark's `stats.data` holds: the values of rounds, each of a process of its own, or samples
    of one process; both in seconds per step. Numbers that are not finite become None.
    """
    read_back = {
        "case": case,
        "items_per_step": items_per_step,
        "weights_digest": weights_digest,
        "data": data,
        "memory": memory,
        "divergence": divergence,
        "notes": list(notes),
    }
    return {**_plain(dict(metrics)), KEY: _plain(read_back)}


def machine_info(environment: Environment) -> dict[str, Any]:
    """Return pytest-benchmark's `machine_info`: what its own tables show, and the environment whole."""
    return {
        "node": environment.host,
        "processor": environment.cpu,
        "system": environment.system,
        "python_version": environment.python_version,
        "cpu": {"brand_raw": environment.cpu, "count": environment.cpu_count},
        "torch_version": environment.torch_version,
        "threads": environment.threads,
        "devices": {device.type: device.name for device in environment.devices if device.available},
        KEY: _plain(environment),
    }


def _plain(value: Any) -> dict[str, Any]:
    """Return records as what JSON has: dictionaries, lists, None for numbers that are not finite."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value, enc_hook=dict))
    return plain


def _benchmark(selected: Selected, row: Row, rounds: Sequence[Round]) -> dict[str, Any]:
    case_id = row["case_id"]
    case = selected.stored.cases[case_id]
    names = ("workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format")
    return {
        # the precisions of one table in one group, which is what `compare` shows together
        "group": "/".join((case.group, case.device, case.phase, case.path)),
        "name": case_id,
        "fullname": case_id,
        "params": {**case.parameters, **{name: row[name] for name in names}},
        "param": case.precision,
        "extra_info": case_info(
            case,
            items_per_step=rounds[0].items_per_step,
            weights_digest=rounds[0].weights_digest,
            data="rounds",
            memory=selected.stored.memory.get(case_id),
            divergence=selected.stored.divergence.get(case_id),
            notes=[],
            metrics={column.name: value for column, value in defined(row, METRICS.values())},
        ),
        "options": _options(selected.stored.header),
        "stats": statistics_of([stats.round_value(each.samples, each.cpu_samples) for each in rounds]),
    }


def _options(header: Header) -> dict[str, Any]:
    """Return what was asked of a benchmark; nothing, where another program was asked."""
    if header.imported is not None:
        return {}
    settings = header.settings
    return {"min_rounds": settings.rounds, "min_time": settings.min_run_seconds, "warmup": True}


def _commit(header: Header) -> dict[str, Any]:
    """Return the commit under pytest-benchmark's names; "unversioned" and "(unknown)" are its words for none."""
    commit = header.commit or UNVERSIONED
    return {
        "id": commit.removesuffix(DIRTY),
        "time": header.committed_at,
        "author_time": None,
        "dirty": commit.endswith(DIRTY),
        "project": None,
        "branch": "(unknown)",
    }
