"""A probe of autocast on one device type: of every op with a rule what documents say, what is registered and observed.

Known traps are tried, too, in the torch that is installed: its stale weight cache and `torch.jit.trace`. A device that
is not here is stood in for by fake tensors.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch

from ampbench.errors import first_line
from ampbench.instruments.rules.findings import chosen_ops
from ampbench.records.case import DEVICES
from ampbench.records.rules import (
    BANNED,
    DEVICE,
    DTYPES,
    FAKE,
    NOT_OBSERVED,
    RuleClaim,
    RuleObservation,
    RuleProbe,
    RulesAsked,
    RuleTrial,
)
from ampbench.trace.dtypes import is_present, stood_in
from ampbench.trace.rules.documented import SOURCES, documented_category, documented_ops, probe_claims, registered_ops
from ampbench.trace.rules.observed import classify, find_op, run_trials, run_variants
from ampbench.trace.rules.samples import SAMPLES
from ampbench.worker.worker import Work

BEHAVIOURS = "behaviours"
"""The source of what is said here: what users were told or found out."""

NEEDS_GRAD = "Cannot insert a Tensor that requires grad as a constant"


PLACEMENTS = (
    ("around", True, True),
    ("around", True, False),
    ("around", False, True),
    ("inside", True, True),
    ("inside", False, True),
)
"""Autocast around the tracing or inside the traced forward; with the weight cache; with `check_trace`, the default."""

CALLED = (("around", False), ("around", True), ("inside", False), ("inside", True), ("nowhere", False))
"""Autocast around the tracing, inside the traced forward or at no time while tracing; whether the trace is frozen."""


def probe_traps(device: str) -> list[RuleClaim]:
    """Return what happens in each trap on `device`; nothing raises out of this."""
    return [
        stale_cache(device),
        *(trace_under_autocast(device, *placement) for placement in PLACEMENTS),
        *(call_traced(device, *called) for called in CALLED),
    ]


def stale_cache(device: str) -> RuleClaim:
    """Return whether a no_grad forward, then a forward with gradients in the same region, loses the weight's gradient.

    The first forward caches the cast weight without a graph; if the second is given that copy, no gradient reaches the
    weight. Never tried on fake tensors: autograd on those of an absent XPU aborts the whole process.
    """
    found, holds, how = f"no {device} here to train on", None, NOT_OBSERVED
    if is_present(device):
        layer = torch.nn.Linear(4, 4, bias=False).to(device)
        batch = torch.ones(2, 4, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            with torch.no_grad():
                layer(batch)
            loss = layer(batch).float().sum()
        if loss.requires_grad:
            loss.backward()
        holds, how = layer.weight.grad is None, DEVICE
        found = "the gradient is lost" if holds else "the gradient is kept"
    return RuleClaim(
        name="stale cache",
        device=device,
        source=BEHAVIOURS,
        said="a no_grad forward, then a grad forward in one region: the gradient is lost",
        found=found,
        holds=holds,
        how=how,
    )


def trace_under_autocast(device: str, placement: str, cache: bool, check: bool) -> RuleClaim:
    """Return what `torch.jit.trace` does with a linear layer and autocast in `placement`, weight cache on or off.

    `found` is the error, or the dtype that the traced module returns outside any region, with the casts that the graph
    holds; and the category of the warning that TorchScript gives. With `check`, torch traces a second time to compare:
    by then the region's cache holds the cast weights, which is what makes tracing fail.
    """
    expected = "fails" if placement == "around" and cache else "works"
    name = f"jit.trace, autocast {placement}, weight cache {'on' if cache else 'off'}"
    if not check:
        name += ", check_trace=False"
    if not is_present(device):
        found, holds, how = f"no {device} here to trace on", None, NOT_OBSERVED
    else:
        found, works = _trace(device, placement, cache, check)
        holds, how = works == (expected == "works"), DEVICE
    return RuleClaim(name=name, device=device, source=BEHAVIOURS, said=expected, found=found, holds=holds, how=how)


def call_traced(device: str, placement: str, frozen: bool) -> RuleClaim:
    """Return which dtype a traced linear layer with a norm after it gives, outside and inside an autocast region.

    A trace made with autocast should give eager autocast's dtype wherever it is called, one made without it follow the
    region it is called in. `found` has both dtypes, eager's and the casts that the graph holds. The weight cache is off
    while tracing.
    """
    name = f"jit.trace called, autocast {placement}" + (", frozen" if frozen else "")
    said = "follows the region it is called in" if placement == "nowhere" else "gives what eager autocast gives"
    if not is_present(device):
        found, holds, how = f"no {device} here to trace on", None, NOT_OBSERVED
    else:
        found, holds = _call(device, placement, frozen)
        how = DEVICE
    return RuleClaim(name=name, device=device, source=BEHAVIOURS, said=said, found=found, holds=holds, how=how)


def _call(device: str, placement: str, frozen: bool) -> tuple[str, bool]:
    def region() -> contextlib.AbstractContextManager[object]:
        return torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False)

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)).to(device).eval()
    batch = torch.ones(2, 4, device=device)
    module = _Inside(net, region).eval() if placement == "inside" else net
    around = region if placement == "around" else contextlib.nullcontext
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            with around():
                traced = torch.jit.trace(module, batch)  # type: ignore[no-untyped-call]
                traced = torch.jit.freeze(traced) if frozen else traced
            casts = sum(str(traced.inlined_graph).count(cast) for cast in ("aten::to(", "aten::_autocast_to_"))
            outside = traced(batch).dtype
            with region():
                inside, eager = traced(batch).dtype, net(batch).dtype
        except Exception as error:  # noqa: BLE001 - that it raises is the finding
            return f"fails: {first_line(error)}", False
    dtypes = [str(dtype).removeprefix("torch.") for dtype in (outside, inside, eager)]
    found = "outside a region {}, inside {}, eager autocast {}".format(*dtypes)
    holds = inside == eager and outside == (torch.float32 if placement == "nowhere" else eager)
    return f"{found}; {casts} casts in the graph", holds


class _Inside(torch.nn.Module):
    """A linear layer that enters autocast in its own forward."""

    def __init__(self, layer: torch.nn.Module, region: Callable[[], contextlib.AbstractContextManager[object]]):
        super().__init__()
        self.layer = layer
        self._region = region

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with self._region():
            result: torch.Tensor = self.layer(batch)
        return result


def _trace(device: str, placement: str, cache: bool, check: bool) -> tuple[str, bool]:
    def region() -> contextlib.AbstractContextManager[object]:
        return torch.autocast(device, dtype=torch.bfloat16, cache_enabled=cache)

    layer = torch.nn.Linear(4, 4).to(device)
    module, around = (layer, region) if placement == "around" else (_Inside(layer, region), contextlib.nullcontext)
    batch = torch.ones(2, 4, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with around():
                traced = torch.jit.trace(module, batch, check_trace=check)  # type: ignore[no-untyped-call]
            result = traced(batch)
            casts = str(traced.inlined_graph).count("aten::to(")
            dtype = str(result.dtype).removeprefix("torch.")
            found, works = f"works: returns {dtype}, {casts} casts in the graph", True
        except Exception as error:  # noqa: BLE001 - that it raises is the finding
            text = NEEDS_GRAD if NEEDS_GRAD in str(error) else first_line(error)
            found, works = f"fails: {text}", False
    kinds = sorted({one.category.__name__ for one in caught if "torch.jit" in str(one.message)})
    return found + (f"; warns with {', '.join(kinds)}" if kinds else ""), works


ABSENT = "this torch has no such op"
NO_SAMPLE = "there is no sample call for it"
NAMES = "an overload for named tensors, which cannot be called as an op nor stood in for by fake ones"


def probe_rules(device: str, dtypes: Sequence[str] = DTYPES, *, ops: Iterable[str] | None = None) -> RuleProbe:
    """Return what autocast does on `device` in each of `dtypes`, op by op in order of names.

    The ops are those with a rule on *any* device type or in any document, so that probes of different devices have
    the same rows; `ops` (names with overloads) selects among them. An absent device is stood in for by fake tensors.
    No op raises out of this: what cannot be observed is marked, with the reason. Takes seconds.
    """
    names = rule_ops() if ops is None else sorted(set(ops))
    observations = []
    callable_names = [
        name for name in names if not (name.startswith("aten::") and _takes_names(name.partition(".")[2]))
    ]
    without = [name for name in callable_names if name not in SAMPLES and find_op(name) is not None]
    with stood_in(device):
        for dtype in dtypes:
            observations += [observe(name, device, dtype) for name in names]
    return RuleProbe(
        torch_version=str(torch.__version__),  # a TorchVersion is no plain str
        device=device,
        dtypes=list(dtypes),
        observations=observations,
        claims=[*probe_claims(device), *probe_traps(device)] if ops is None else [],
        without_sample=without,
    )


def rule_ops() -> list[str]:
    """Return the names of all ops with an autocast rule: registered for any device type, or named by any document.

    A documented op of which some overloads are registered stands for those; one of which none is, for its default.
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
    """Return what is documented, registered and observed of one op; within `stood_in(device)`.

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
    seen = DEVICE if is_present(device) else FAKE
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
        how=NOT_OBSERVED if observed is None else seen,
        reason=reason,
        trials=trials,
        variants=variants,
    )


def _takes_names(overload: str) -> bool:
    return "dimname" in overload.lower() or overload.startswith("names_")


@cache
def _registered(device: str) -> frozenset[str]:
    return registered_ops(device)


def do_rules(work: Work, asked: RulesAsked) -> RuleProbe:
    """Do the task "rules"; `UsageError` for an op that is not known."""
    return probe_rules(work.device_type, asked.dtypes, ops=chosen_ops(asked.ops, rule_ops()) if asked.ops else None)
