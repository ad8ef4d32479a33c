"""What the sets that were weighed come to: error, time and memory of each, which are worth their price, in sentences.

Times are compared as `ampbench.studies.paired` does. The code that keeps the modules that a search found is made
here, to be pasted into a program of `model` and `inputs`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape

from ampbench.core.precisions import PRECISIONS, Precision
from ampbench.core.units import counted, format_bytes, format_error, format_kept, format_share
from ampbench.instruments.keep_fp32.records import KeepSearch, SearchSpace, Trial, Weighed
from ampbench.instruments.keep_fp32.trials import WHOLE, Budget, units_of
from ampbench.records.case import Case
from ampbench.records.labels import FP32_INSTEAD, few
from ampbench.studies.paired import Ratio, ratio_of, ratio_said, step_seconds, unfit

NAMED = 6
"""So many modules are named in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What keeping the modules `kept` in fp32 comes to; None where something is undefined or was not measured.

    `units` is how many of the space that keeps. Errors are relative L2, `update_kept` and `update_nonfinite` as in
    `Trial` (None: not bounded), `seconds` those of a step, `against_low` its ratio to the step with no module kept.
    `found`: this is the set that was found; `meets`: it meets the budget; `on_front`: no other set is as good in error,
    update, time and memory and certainly better in one of them. `refuted`: it met the budget on the first batch and
    missed it on another.
    """

    kept: list[str]
    units: int
    output_rel_l2: float | None
    grad_rel_l2: float | None
    update_kept: float | None = None
    update_nonfinite: int | None = None
    seconds: float | None
    against_low: Ratio | None
    peak_bytes: int | None
    found: bool = False
    meets: bool = False
    on_front: bool = False
    refuted: bool = False


def points(search: KeepSearch, space: SearchSpace, trials: Iterable[Trial]) -> list[Point]:
    """Return a point for every set that was weighed, in their order; none where nothing was."""
    if search.weighing is None:
        return []
    weighed = search.weighing.weighed
    known = {tuple(trial.kept): trial for trial in trials}
    low = next((one for one in weighed if not one.kept and _is_timed(one)), None)
    made = [_point(one, low, search, space, known) for one in weighed]
    beaten = [
        any(_dominates(made[other], made[place], weighed[other], weighed[place]) for other in range(len(made)))
        for place in range(len(made))
    ]
    return [replace(point, on_front=not lost) for point, lost in zip(made, beaten, strict=True)]


def meets(search: KeepSearch, trial: Trial) -> bool:
    """Return whether a trial meets the budget of a search: all errors are defined and none is too large.

    A set that was refuted on another batch does not, whatever it errs on the first.
    """
    return max(_budget(search).shares(trial)) <= 1.0 and not _is_refuted(search, trial.kept)


def closest(search: KeepSearch, trials: Iterable[Trial]) -> Trial | None:
    """Return the trial that comes nearest to the budget, of equal ones the first; None where none has its errors."""
    budget = _budget(search)
    bounds_gradients = search.max_gradient_error is not None
    worst = {tuple(trial.kept): trial for trial in search.refuted}
    defined = [
        trial
        for trial in (worst.get(tuple(one.kept), one) for one in trials)
        if not trial.error
        and trial.output_rel_l2 is not None
        and (trial.grad_rel_l2 is not None or not bounds_gradients)
    ]
    return min(defined, key=lambda trial: (max(budget.shares(trial)), trial.output_rel_l2 or 0.0), default=None)


def said(search: KeepSearch, space: SearchSpace, trials: Sequence[Trial]) -> list[str]:
    """Return what was found, what that errs and what it costs, in sentences without a full stop."""
    sets = {tuple(trial.kept): trial for trial in trials}
    picture = points(search, space, trials)
    unknown = [trial.update_undefined for trial in trials if trial.update_undefined and not trial.update_nonfinite]
    lines = [
        *against_said(trials),
        *(f"what arrives of an update is not bounded: {why}" for why in dict.fromkeys(unknown)),
        _found_said(search, space, sets),
        *_missed_said(search, sets, trials),
        *_confirmed_said(search),
        _proof_said(search),
    ]
    lines += [*_cost_said(search, picture), *_doubts(search), *search.notes, *space.notes]
    return [line for line in lines if line]


def against_said(trials: Sequence[Trial]) -> list[str]:
    """Say that errors are not against fp64, and why, where that is so."""
    return list(dict.fromkeys(FP32_INSTEAD.format(one.reference_error) for one in trials if one.reference_error))


def so_far(space: SearchSpace, trials: Sequence[Trial]) -> str:
    """Return what a search that did not end has tried, and the smallest set of these that meets the budget."""
    made = f"{counted(len(trials), 'trial')} made"
    if space.wanted is None:
        return made
    bounded = any(trial.update_kept is not None or trial.update_nonfinite for trial in trials)
    budget = Budget(
        max_error=space.wanted.max_error,
        max_gradient_error=space.wanted.max_gradient_error,
        min_update_kept=space.wanted.min_update_kept if bounded else None,
    )
    meeting = [trial.kept for trial in trials if max(budget.shares(trial)) <= 1.0]
    if not meeting:
        return f"{made}, of which none meets the budget"
    best = min(meeting, key=lambda kept: len(units_of(space, kept)))
    many = counted(len(units_of(space, best)), "module")
    return f"{made}; the smallest set so far that meets the budget keeps {many} ({kept_said(best)})"


def kept_said(kept: Sequence[str], most: int = NAMED) -> str:
    """Return the names of a set as text: "none", "all", or the modules."""
    if list(kept) == WHOLE:
        return "all"
    return few(kept, most) if kept else "none"


def _point(
    one: Weighed, low: Weighed | None, search: KeepSearch, space: SearchSpace, known: Mapping[tuple[str, ...], Trial]
) -> Point:
    trial = known.get(tuple(one.kept))
    timed = _is_timed(one)
    return Point(
        kept=list(one.kept),
        units=len(units_of(space, one.kept)),
        output_rel_l2=trial.output_rel_l2 if trial else None,
        grad_rel_l2=trial.grad_rel_l2 if trial else None,
        update_kept=trial.update_kept if trial else None,
        update_nonfinite=trial.update_nonfinite if trial and search.min_update_kept is not None else None,
        seconds=step_seconds(one.samples),
        against_low=ratio_of(one.samples, low.samples) if timed and low is not None else None,
        peak_bytes=one.peak_bytes,
        found=search.found is not None and list(one.kept) == list(search.found),
        meets=trial is not None and meets(search, trial),
        refuted=_is_refuted(search, one.kept),
    )


def _is_refuted(search: KeepSearch, kept: Sequence[str]) -> bool:
    return any(list(trial.kept) == list(kept) for trial in search.refuted)


def _is_timed(one: Weighed) -> bool:
    return bool(one.samples) and all(one.samples)


def _dominates(one: Point, other: Point, weighed: Weighed, beside: Weighed) -> bool:
    """Return whether `one` is in nothing worse than `other` and certainly better in something.

    Where the time is not known well enough for an interval, nothing is certain, and neither dominates.
    """
    if one is other or one.seconds is None or other.seconds is None:
        return False
    times = ratio_of(weighed.samples, beside.samples)
    if times.high is None or times.value > 1:
        return False
    pairs = [(_or_worst(mine), _or_worst(theirs)) for mine, theirs in zip(_prices(one), _prices(other), strict=True)]
    if any(mine > theirs for mine, theirs in pairs):
        return False
    return times.high < 1 or any(mine < theirs for mine, theirs in pairs)


def _prices(point: Point) -> tuple[float | None, ...]:
    """Return what is the better for being small, but for the time."""
    lost = None if point.update_kept is None else max(1.0 - point.update_kept, 0.0)
    return point.output_rel_l2, point.grad_rel_l2, lost, point.peak_bytes


def _or_worst(price: float | None) -> float:
    """Return a price, the worst there is for what is undefined; memory is known of all sets or of none."""
    return math.inf if price is None else price


def _budget(search: KeepSearch) -> Budget:
    return Budget(
        max_error=search.max_error,
        max_gradient_error=search.max_gradient_error,
        min_update_kept=search.min_update_kept,
    )


def _found_said(search: KeepSearch, space: SearchSpace, sets: Mapping[tuple[str, ...], Trial]) -> str:
    if search.found is None:
        return f"no set of modules {'kept in fp32' if tuple(WHOLE) in sets else 'that was tried'} meets the budget"
    low, found = sets.get(()), sets.get(tuple(search.found))
    if not search.found:
        return f"no module need be kept in fp32: {_errors_said(search, None, found)}"
    if search.found == WHOLE:
        meets = "meets" if search.smallest else "was found to meet"
        return (
            f"nothing less than the whole network in fp32 {meets} the budget: run it in fp32; kept whole, "
            f"{_errors_said(search, None, found)}"
        )
    plural = "brings" if search.units == 1 else "bring"
    which = few(search.found, NAMED) + (", all in the code to paste" if len(search.found) > NAMED else "")
    subject = f"{search.units:,} of {counted(len(space.units), 'module')} kept in fp32 ({which}) {plural}"
    return f"{subject} {_errors_said(search, low, found)}"


def _errors_said(search: KeepSearch, low: Trial | None, found: Trial | None) -> str:
    """Return "the output error from 3.1e-02 to 1.9e-03 (budget 2.0e-03)", with the gradient's where it is bounded."""
    parts = []
    for what, name, limit in (
        ("output", "output_rel_l2", search.max_error),
        ("gradient", "grad_rel_l2", search.max_gradient_error),
    ):
        if limit is None:
            continue
        after = format_error(getattr(found, name)) if found else "unknown"
        before = f"from {_before(low, getattr(low, name))} to" if low is not None else "is"
        parts.append(f"the {what} error {before} {after} (budget {format_error(limit)})")
    if search.min_update_kept is not None and found is not None:
        before = f"from {_arriving(low)} to" if low is not None else "is"
        least = format_share(search.min_update_kept)
        parts.append(f"the share of the update that arrives {before} {_arriving(found)} (at least {least})")
    return few(parts, len(parts)) if len(parts) > 2 else " and ".join(parts)


def _arriving(trial: Trial) -> str:
    """Return the share of an update that arrives, or why there is none."""
    if trial.update_kept is not None:
        return format_kept(trial.update_kept)
    count = trial.update_nonfinite
    return f"undefined ({counted(count, 'parameter element')} not finite)" if count else "unknown"


def _confirmed_said(search: KeepSearch) -> Iterable[str]:
    """Say what the found set errs at worst on batches that the search did not see, and which sets failed on these."""
    shares = _budget(search).shares
    if search.confirmed:
        worst = max(search.confirmed, key=lambda trial: max(shares(trial)))
        batches = counted(len(search.confirmed), "other batch", "other batches")
        yield f"confirmed on {batches}: at worst {_errors_said(search, None, worst)}"
    if search.refuted:
        first = min(search.refuted, key=lambda trial: max(shares(trial)))
        which = f"; nearest {kept_said(first.kept, 2)}, where {_errors_said(search, None, first)}"
        yield f"{counted(len(search.refuted), 'other set')} met it on the first batch and not on another{which}"


def _before(low: Trial, error: float | None) -> str:
    """Return an error without kept modules, or why there is none."""
    if error is not None:
        return format_error(error)
    return f"undefined ({counted(low.nonfinite, 'value')} not finite)" if low.nonfinite else "undefined"


def _missed_said(search: KeepSearch, sets: Mapping[tuple[str, ...], Trial], trials: Sequence[Trial]) -> Iterable[str]:
    """Say how close one gets where nothing meets the budget."""
    if search.found is not None:
        return
    best = closest(search, trials)
    if best is None:
        failed = next((trial.error for trial in trials if trial.error), "")
        yield "no set that was tried has errors that are defined" + (f": {failed}" if failed else "")
        return
    whole = sets.get(tuple(WHOLE))
    if best.kept == WHOLE:
        kept = "all modules kept"
    elif best.kept:
        kept = f"{kept_said(best.kept)} kept"
    else:
        kept = "no module kept"
    yield f"the closest is {kept}: {_errors_said(search, None, best)}"
    if whole is not None and whole is not best and whole.output_rel_l2 is not None:
        yield f"with all modules kept, {_errors_said(search, None, whole)}"


def _proof_said(search: KeepSearch) -> str:
    tried = counted(search.trials, "trial")
    if search.found is None or not search.found:
        return tried
    if search.smallest:
        return f"no smaller set does, given that keeping more never errs more; {tried}"
    return f"whether a smaller set does is not proven: none was found in {tried}"


def _cost_said(search: KeepSearch, picture: Sequence[Point]) -> Iterable[str]:
    """Say what the found set costs, beside the step with no module kept and that with all."""
    by_set = {tuple(point.kept): point for point in picture}
    low, whole = by_set.get(()), by_set.get(tuple(WHOLE))
    found = by_set.get(tuple(search.found)) if search.found not in (None, [], WHOLE) else None
    parts = []
    if found is not None and found.against_low is not None:
        parts.append(f"the step takes {ratio_said(found.against_low)} as long as with none kept")
    if whole is not None and whole.against_low is not None:
        said = ratio_said(whole.against_low)
        parts.append(
            f"with all kept {said}" if parts else f"with all modules kept, the step takes {said} as long as with none"
        )
    if parts:
        yield "; ".join(parts)
    which = "with these modules kept" if found is not None else "with no module kept"
    against = _against_whole(search, found or low)
    if against is not None and against.low is not None and against.low > 1:
        yield f"{which}, the step is slower here than with all in fp32: {ratio_said(against)} as long"
    elif against is not None and found is not None:
        yield f"{which}, the step takes {ratio_said(against)} as long as with all in fp32"
    elif against is None and search.found not in (None, [], WHOLE):
        yield (
            "speed against fp32 was not measured: ampbench run measures a function whose network keeps these modules "
            "beside fp32"
        )
    if low is not None and low.peak_bytes is not None:
        peaks = [("with these modules kept", found), ("with none", low), ("with all", whole)]
        known = [f"{format_bytes(one.peak_bytes)} {name}" for name, one in peaks if one and one.peak_bytes is not None]
        yield f"peak memory {', '.join(known)}"


def _against_whole(search: KeepSearch, point: Point | None) -> Ratio | None:
    """Return how many times as long as with all modules kept a step takes; None where one of both was not timed."""
    if search.weighing is None or point is None:
        return None
    weighed = {tuple(one.kept): one for one in search.weighing.weighed}
    mine, all_kept = weighed[tuple(point.kept)], weighed.get(tuple(WHOLE))
    if all_kept is None or not (_is_timed(mine) and _is_timed(all_kept)):
        return None
    return ratio_of(mine.samples, all_kept.samples)


def _doubts(search: KeepSearch) -> Iterable[str]:
    """Say what spoils the times."""
    if search.weighing is None:
        return
    yield from unfit(search.weighing.fitness)
    yield from search.weighing.notes


CALLED = "output = model(inputs)  # or model(*inputs), model(**inputs)"
WIDTH = 88
"""Longer calls have a line for each name, as formatters write them."""


def code(search: KeepSearch, case: Case) -> str:
    """Return Python that keeps what was found and runs `model` on `inputs`, whatever these are, as the trial of it did.

    Empty where nothing was found, nothing need be kept, or all of it: a network in fp32 needs no code. `model` is in
    fp32, on the device; in a pure precision its modules are kept before it is moved, so that their weights lose
    nothing. Names that `keep_fp32` would take for patterns are escaped.
    """
    if not search.found or search.found == WHOLE:
        return ""
    row = PRECISIONS[case.precision]
    pure, trains = row.autocast is None, case.phase == "training"
    lines = [
        "import torch",
        *(["from torch.utils._pytree import tree_map_only"] if pure else []),
        "",
        "import ampbench",
        "",
        *([] if trains else ["model.eval()"]),
        *_call(search.found, cast_back=pure),
    ]
    if case.memory_format == "channels_last":
        lines.append("model = model.to(memory_format=torch.channels_last)  # inputs, too")
    region = _pure(row.storage, training=trains) if pure else _autocast(row, case.device, training=trains)
    return "\n".join([*lines, *region, *_after(case, scaler=trains and row.scaler and case.scaler)]) + "\n"


def _call(found: list[str], *, cast_back: bool) -> list[str]:
    """Return the call of `keep_fp32`, on as many lines as it needs."""
    arguments = ["model", *(_quoted(escape(name)) for name in found), *(["cast_back=True"] if cast_back else [])]
    line = f"ampbench.keep_fp32({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    return ["ampbench.keep_fp32(", *(f"    {one}," for one in arguments), ")"]


def _quoted(text: str) -> str:
    return f'"{text}"' if text.isprintable() and not set(text) & {'"', "\\"} else repr(text)


def _autocast(row: Precision, device: str, *, training: bool) -> list[str]:
    """Return what enters autocast as `explain.dtypes.autocast_of` does."""
    inside = ["    # and the loss, in here"] if training else []
    return [f'with torch.autocast("{device}", dtype=torch.{row.autocast}):', f"    {CALLED}", *inside]


def _pure(storage: str, *, training: bool) -> list[str]:
    moved = {"float16": "half", "bfloat16": "bfloat16"}[storage]
    return [
        f"model = model.to(torch.{storage})  # after keep_fp32: what is kept stays fp32",
        f"inputs = tree_map_only({'  # targets, too' if training else ''}",
        f"    torch.Tensor, lambda x: x.{moved}() if x.is_floating_point() else x, inputs",
        ")",
        CALLED,
    ]


def _after(case: Case, *, scaler: bool) -> list[str]:
    """Return comments on what follows in training."""
    if not scaler:
        return []
    return [
        f'# scaler = torch.amp.GradScaler("{case.device}")',
        "# scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    ]
