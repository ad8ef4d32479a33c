"""A probe of autocast on one device type: documented, registered and observed behaviour of every op with a rule.

Fake tensors stand in for an absent device.
"""

from collections.abc import Iterable, Sequence
from functools import cache

import torch

from ampbench.records.case import DEVICES
from ampbench.records.rules import BANNED, DEVICE, DTYPES, FAKE, NOT_OBSERVED, RuleObservation, RuleProbe, RuleTrial
from ampbench.records.wire import Nothing
from ampbench.trace.dtypes import is_present, stood_in
from ampbench.trace.rules import (
    SAMPLES,
    SOURCES,
    classify,
    documented_category,
    documented_ops,
    find_op,
    registered_ops,
    run_trials,
    run_variants,
)
from ampbench.worker.worker import Work

ABSENT = "this torch has no such op"
NO_SAMPLE = "there is no sample call for it"
NAMES = "an overload for named tensors, which cannot be called as an op nor stood in for by fake ones"


def probe_rules(device: str, dtypes: Sequence[str] = DTYPES, *, ops: Iterable[str] | None = None) -> RuleProbe:
    """Return autocast's behaviour on `device` in each of `dtypes`, op by op in order of names.

    The ops have a rule on *any* device type or in any document, so that probes of different devices have the same rows;
    `ops` (names with overloads) selects among them. An absent device is stood in for by fake tensors. No op raises out
    of this: an unobservable op is marked, with the reason. Takes seconds.
    """
    names = rule_ops() if ops is None else sorted(set(ops))
    with stood_in(device):
        observations = [observe(name, device, dtype) for dtype in dtypes for name in names]
    return RuleProbe(device=device, dtypes=list(dtypes), observations=observations)


def rule_ops() -> list[str]:
    """Return the names of all ops with an autocast rule: registered for any device type, or named by any document.

    A documented op stands for its registered overloads or, if none is registered, for its default overload.
    Ops that have a sample had a rule in some torch version, and are there in each that has the op: a rule that comes
    or goes must be seen to.
    """
    names = {name for name in SAMPLES if find_op(name) is not None}.union(
        *(registered_ops(device) for device in DEVICES)
    )
    bases = {name.partition(".")[0] for name in names} | set(names)
    for source in SOURCES:
        for device in DEVICES:
            for op in documented_ops(source, device) or ():
                if op not in bases:
                    names.add(op)
    return sorted(names)


def observe(name: str, device: str, dtype: str) -> RuleObservation:
    """Return the documented, registered and observed behaviour of one op; call it within `stood_in(device)`.

    Raises nothing but errors of this code: errors of the op are part of the observation.
    """
    op, _, overload = name.partition(".") if name.startswith("aten::") else (name, "", "")
    target, sample = find_op(name), SAMPLES.get(name)
    trials: dict[str, RuleTrial] = {}
    variants: dict[str, str] = {}
    observed, reason = None, ""
    if target is None:
        reason = ABSENT
    elif _takes_names(overload):
        reason = NAMES
    elif sample is None:
        reason = NO_SAMPLE
    else:
        torch_dtype = getattr(torch, dtype)
        trials = run_trials(target, sample, device, torch_dtype)
        observed = classify(trials, dtype)
        errors = [trials[kind].autocast.error for kind in ("fp32", "lower")]
        reason = "" if observed == BANNED else next((error for error in errors if error is not None), "")
        variants = run_variants(target, sample, device, torch_dtype, observed)
    how = DEVICE if is_present(device) else FAKE
    return RuleObservation(
        op=op,
        overload=overload,
        device=device,
        dtype=dtype,
        documented={
            source: documented_category(source, device, name)
            for source in SOURCES
            if documented_ops(source, device) is not None
        },
        registered=name in _registered(device) if name.startswith("aten::") else None,
        observed=observed,
        how=NOT_OBSERVED if observed is None else how,
        reason=reason,
        trials=trials,
        variants=variants,
    )


def _takes_names(overload: str) -> bool:
    return "dimname" in overload.lower() or overload.startswith("names_")


@cache
def _registered(device: str) -> frozenset[str]:
    return registered_ops(device)


def do_rules(work: Work, asked: Nothing) -> RuleProbe:  # noqa: ARG001 - as all tasks
    """Do the task "rules"."""
    return probe_rules(work.device_type)
