"""Runs that explain: cast passes made of real traces of small nets, and made-up probes of autocast's rules."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from ampbench import trace_casts
from ampbench.records.case import Case
from ampbench.records.casts import CastPass, CastTrace
from ampbench.store import StoredRun, gathered
from tests.stored_runs import make_case, make_header

TRAINED = make_case("bf16_autocast", phase="training")


@cache
def traced_net(timed: bool = True) -> CastTrace:
    """Return a training step of a small network, traced."""
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Softmax(-1), torch.nn.Linear(16, 16))
    with trace_casts(net, time=timed) as ledger, torch.autocast("cpu"):
        net(torch.ones(8, 16)).sum().backward()
    return ledger.trace


def make_pass(case: Case = TRAINED, **changes: Any) -> CastPass:
    """Return a pass of `case`; without times it stands for one on fake tensors."""
    fields: dict[str, Any] = {"case_id": case.case_id, "how": "device", "trace": traced_net()}
    return CastPass(**fields | changes)


def explaining(*passes: CastPass, cases: tuple[Case, ...] = (TRAINED,), **header: Any) -> StoredRun:
    """Return a run that holds `passes` of `cases` and measured nothing."""
    fields = {"run": "why", "explains": "casts"} | header
    return gathered(Path("runs/why.jsonl"), make_header(**fields), [*cases, *passes])
