"""What each scope of autocast costs beside the one that PyTorch recommends, forward and loss: numbers and sentences.

Times are compared as `ampbench.studies.paired` does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ampbench.core import stats
from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.units import apart, counted, format_bytes, format_error, format_share
from ampbench.instruments.scope.records import (
    FORWARD,
    FORWARD_AND_LOSS,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    ScopePass,
    ScopeRun,
)
from ampbench.records.case import Case
from ampbench.studies.paired import BUSY, Ratio, ratio_of, ratio_said, step_seconds, unfit

RECOMMENDED = FORWARD_AND_LOSS

LARGER = 2.0
"""An error is larger where it is so many times the recommended scope's: luck in rounding moves errors by less."""
LARGER_PEAK = 1.01
"""A peak is larger from so many times on: below, it is some scratch memory that an op took a moment earlier."""

_AROUND = {
    FORWARD: "the forward pass only",
    FORWARD_AND_LOSS: "forward and loss",
    WITH_BACKWARD: "forward, loss and backward",
    WHOLE_LOOP: "the whole loop",
    UNCACHED_LOOP: "the whole loop, its weight cache off",
}
_CHANGED = "what all steps changed in the weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A scope's `run` beside the recommended scope's; None where something is unknown.

    `loss_rel_error` is the error of the first step's loss, relative to that of the `reference`. `later_casts` and
    `later_cast_bytes` are medians over the steps after the first. `stale_weights` are read as copies
    older than the optimizer's last step, in the last step. `seconds` are those of a step, `ratio` how many times as
    long it takes as in the recommended scope. `peak_bytes` is the highest of all steps, `kept_bytes` what the last step
    leaves allocated, `growth_bytes` the median of what a step after the first adds to that.
    """

    run: ScopeRun
    reference: str = "fp64"
    loss_rel_error: float | None = None
    first_casts: int | None = None
    later_casts: float | None = None
    first_cast_bytes: int | None = None
    later_cast_bytes: float | None = None
    stale_weights: int | None = None
    seconds: float | None = None
    ratio: Ratio | None = None
    peak_bytes: int | None = None
    kept_bytes: int | None = None
    growth_bytes: float | None = None


def comparisons(found: ScopePass) -> list[Comparison]:
    """Return each scope of a pass beside the recommended one, in their order."""
    best = next((run for run in found.scopes if run.scope == RECOMMENDED), None)
    reference = next(iter(found.reference_losses), None)
    return [replace(_comparison(run, best, reference), reference=found.reference_dtype) for run in found.scopes]


def scope_said(case: Case, found: ScopePass) -> list[str]:
    """Return what each scope costs beside the recommended one, which comes first: sentences without a full stop.

    A difference in time is told where its interval leaves no doubt that there is one, and the machine was not busy.
    """
    compared = {one.run.scope: one for one in comparisons(found)}
    best = compared.get(RECOMMENDED)
    spoilt = unfit(found.fitness) if any(one.run.samples for one in compared.values()) else []
    lines = []
    if best is not None:
        lines.append(_recommended_said(case, best))
    for one in compared.values():
        if one is best:
            continue
        costs = list(_costs(one, best, timed=not spoilt))
        if not costs:
            costs = ["no cost was seen", *([f"its time is {BUSY}"] if spoilt and one.ratio else [])]
        lines.append(f"around {_AROUND[one.run.scope]}: {'; '.join(costs)}")
    return [*lines, *spoilt]


def differs(ratio: Ratio) -> bool:
    """Return whether the interval of a ratio, as it is written, leaves 1 out."""
    return ratio.low is not None and ratio.high is not None and (round(ratio.low, 2) > 1 or round(ratio.high, 2) < 1)


def casts_said(casts: Sequence[int]) -> str:
    """Return casts per step as "15", "15, then 9" or "9 to 15"."""
    first, *rest = casts
    if len(set(rest)) > 1:
        return f"{min(casts)} to {max(casts)}"
    return f"{first}, then {rest[0]}" if rest and rest[0] != first else f"{first}"


def _comparison(run: ScopeRun, best: ScopeRun | None, reference: float | None) -> Comparison:
    timed = best is not None and run is not best and run.samples and best.samples
    added = [after - before for before, after in zip(run.alive_bytes, run.alive_bytes[1:], strict=False)]
    off = run.loss_abs_error
    return Comparison(
        run=run,
        loss_rel_error=off / abs(reference) if off is not None and reference else None,
        first_casts=run.casts[0] if run.casts else None,
        later_casts=stats.median(run.casts[1:]) if run.casts[1:] else None,
        first_cast_bytes=run.cast_bytes[0] if run.cast_bytes else None,
        later_cast_bytes=stats.median(run.cast_bytes[1:]) if run.cast_bytes[1:] else None,
        stale_weights=run.stale_weights[-1] if run.stale_weights else None,
        seconds=step_seconds(run.samples),
        ratio=ratio_of(run.samples, best.samples) if timed and best is not None else None,
        peak_bytes=max(run.peak_bytes, default=None),
        kept_bytes=run.alive_bytes[-1] if run.alive_bytes else None,
        growth_bytes=stats.median(added) if added else None,
    )


def _recommended_said(case: Case, best: Comparison) -> str:
    """Say what the recommended scope does, and whether it shows any of what the others may cost."""
    run = best.run
    begin = f"autocast around {_AROUND[RECOMMENDED]}, as PyTorch recommends"
    if run.error:
        return f"{begin}, raises: {run.error}"
    seen = [f"{casts_said(run.casts)} casts a step"] if run.casts else []
    seen += [f"loss in {run.dtypes['loss']}"] if "loss" in run.dtypes else []
    if best.stale_weights == 0:
        seen.append("every weight read as the optimizer left it")
    if best.kept_bytes is not None and best.kept_bytes <= 0:
        seen.append("nothing kept from step to step")
    flaws = [flaw for flaw in (_stale_said(best), _kept_said(best, None)) if flaw]
    if run.dtypes.get("loss") == SHORT_DTYPES[PRECISIONS[case.precision].autocast or ""]:
        flaws.append(f"the loss is computed in {run.dtypes['loss']}: give it its input in fp32")
    said = f"{begin}: {', '.join(seen)}"
    return f"{said}; but {'; '.join(flaws)}" if flaws else said


def _costs(one: Comparison, best: Comparison | None, *, timed: bool) -> Iterator[str]:
    """Yield what a scope costs, beside the recommended scope if that runs; in time only where `timed`."""
    run = one.run
    if run.error:
        yield f"raises: {run.error}"
        return
    other = best if best is not None and not best.run.error else None
    if stale := _stale_said(one):
        yield stale
        if other is not None and run.losses and other.run.losses:
            steps = counted(len(run.losses), "step")
            (first, last), expected = _ends(run.losses, other.run.losses)
            if (first, last) != expected:
                way = "from {} to {}".format(*expected)
                stays, goes = f"stays at {first} for {steps}, where it should go", f"goes from {first} to {last}"
                yield f"the loss {stays} {way}" if first == last else f"the loss {goes} in {steps}, not {way}"
    if other is not None and sum(run.casts) > sum(other.run.casts) > 0:
        yield f"{casts_said(run.casts)} casts a step, not {casts_said(other.run.casts)}"
    if timed and one.ratio is not None and differs(one.ratio):
        yield f"a step takes {ratio_said(one.ratio)} as long"
    if other is not None and (one.peak_bytes or 0) > LARGER_PEAK * (other.peak_bytes or 0) > 0:
        yield f"peak {format_bytes(one.peak_bytes)}, not {format_bytes(other.peak_bytes)}"
    if kept := _kept_said(one, other):
        yield kept
    if other is not None:
        yield from _worse_numbers(one, other)


def _worse_numbers(one: Comparison, best: Comparison) -> Iterator[str]:
    """Yield what is computed in other dtypes than in the recommended scope, and with larger errors."""
    run, other = one.run, best.run
    for what, dtype in run.dtypes.items():
        if dtype != other.dtypes.get(what, dtype):
            yield f"{what} in {dtype}, not {other.dtypes[what]}"
    for what, error, least in (
        ("output", run.output_rel_l2, other.output_rel_l2),
        ("loss", one.loss_rel_error, best.loss_rel_error),
        ("gradients", run.grad_rel_l2, other.grad_rel_l2),
        (_CHANGED, run.update_rel_l2, other.update_rel_l2),
    ):
        if least is None:
            continue
        if error is None:
            shapes = " or have another shape" if what == "output" else ""  # a detector that finds other boxes
            yield f"{what}: no error is defined, as values are not finite{shapes}"
        elif error > LARGER * least and what == _CHANGED:
            yield f"{what} {format_share(error)} off {one.reference}, not {format_share(least)}"
        elif error > LARGER * least:
            yield f"{what}: relative error {format_error(error)} against {one.reference}, not {format_error(least)}"


def _stale_said(one: Comparison) -> str:
    if not one.stale_weights:
        return ""
    since = next(step for step, count in enumerate(one.run.stale_weights, start=1) if count)
    if one.stale_weights == 1:
        return f"from step {since} on, 1 weight is stale: read as a copy made before the optimizer changed it"
    stale = f"{one.stale_weights:,} weights are stale: read as copies made before the optimizer changed them"
    return f"from step {since} on, {stale}"


def _kept_said(one: Comparison, best: Comparison | None) -> str:
    """Say what a scope keeps from step to step, beyond what the recommended one does."""
    kept = (one.kept_bytes or 0) - ((best.kept_bytes or 0) if best else 0)
    growth = (one.growth_bytes or 0) - ((best.growth_bytes or 0) if best else 0)
    if growth > 0:
        return f"memory grows by {format_bytes(growth)} with each step"
    return f"{format_bytes(kept)} kept from step to step" if kept > 0 else ""


def _ends(*trainings: Sequence[float | None]) -> list[tuple[str, str]]:
    """Return the first and the last loss of each, as ("2.31", "1.95"), with the digits that tell them apart."""
    ends = [loss for losses in trainings for loss in (losses[0], losses[-1])]
    told = iter(apart(*(loss for loss in ends if loss is not None)))
    texts = iter(["not finite" if loss is None else next(told) for loss in ends])
    return list(zip(texts, texts, strict=True))
