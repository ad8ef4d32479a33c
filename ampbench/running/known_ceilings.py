"""What this machine attains at best, from the ceilings that a results folder has of it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from ampbench import store
from ampbench.errors import StoreError
from ampbench.records.environments import Environment
from ampbench.records.runs import CEILINGS, Header
from ampbench.records.studies import COPY, Ceiling
from ampbench.studied.ceilings.rates import ceiling_rate, top
from ampbench.studied.ceilings.sentences import disturbance

_SAME = ("host", "cpu", "torch_version", "cuda_version", "xpu_version")


def ceilings_known(results: Path | str, here: Environment) -> list[Ceiling]:
    """Return the highest ceiling of each device, operation and dtype in a results folder that holds `here`.

    Whatever else runs on a machine only delays: the highest is the nearest to what it can do. All were measured on the
    same host, CPU or accelerator, with the same torch, and on a CPU with as many threads. Of copies that is one of the
    largest size, as smaller ones may be a cache's. Each names its run, of equals the newest; damaged runs have none.
    One that other work may have lowered is none: shares of it would be too high.
    """
    found: dict[tuple[str, str, str], tuple[tuple[int, float], Ceiling]] = {}
    for stored in _studies(results, here):
        for one in stored.ceilings:
            attained = top(one)
            if attained is None or disturbance(one) is not None or not _holds(one, stored.header, here):
                continue
            key = one.device, one.operation, one.dtype
            height = attained.work if one.operation == COPY else 0, ceiling_rate(one) or 0.0
            if key not in found or height > found[key][0]:
                found[key] = height, dataclasses.replace(one, run=stored.header.run)
    return [one for _, one in found.values()]


def _studies(results: Path | str, here: Environment) -> Iterator[store.StoredRun]:
    """Yield the stored studies of ceilings on this machine, the newest first."""
    for path in reversed(store.list_runs(results)):
        try:
            header = store.read_header(path)
            there = header.environment
            if header.explains == CEILINGS and all(getattr(there, name) == getattr(here, name) for name in _SAME):
                yield store.read_run(path)
        except StoreError:
            continue


def _holds(ceiling: Ceiling, header: Header, here: Environment) -> bool:
    """Return whether a ceiling is that of the device that is here now, and on a CPU of as many threads."""
    there, now = header.environment.device(ceiling.device), here.device(ceiling.device)
    if there is None or now is None or there.name != now.name:
        return False
    return ceiling.device != "cpu" or ceiling.threads == here.threads
