"""Which precision to take: a line of advice for each workload, phase, device and path, and why."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ampbench.base.budget import Budget
from ampbench.base.precisions import BASELINE, DEFAULT, PRECISIONS
from ampbench.base.statement import Refusal
from ampbench.base.units import format_share, times
from ampbench.instruments.ranges.arithmetic import remark_line
from ampbench.judge.objections import Objection, error_said, in_output, object_to, objections_of, own_rounds
from ampbench.judge.rows import Group, Row, grouped, judged_error, least_agreement, number, precision_label
from ampbench.present.wording import words
from ampbench.records.case import COMPILED, TORCHS_CHOICE, WITH_GRAPHS, compile_mode
from ampbench.records.labels import few, fp32s_fault, no_precisions_fault
from ampbench.records.measured import Divergence, Round
from ampbench.records.run import ScalerSetting

if TYPE_CHECKING:
    from ampbench.instruments.convergence.learning import Trained
    from ampbench.store import StoredRun

FASTER_WITHOUT_INTERVALS = 1.05
"""The speedup that counts where fewer than three rounds give no interval: rebuilding the same network moves its time by
2% (standard deviation, the project's measurements), a ratio of two by 2.8%, and 5% is nearly twice that."""

FEW_ROUNDS = "no interval under three --rounds"
"""Why nothing is certain of a speedup that only `FASTER_WITHOUT_INTERVALS` speaks for."""

WORTH = 1.02
"""A smaller gain in time is none: the 2% that every comparison calls unchanged."""

TODAYS = (BASELINE, DEFAULT)
"""The precisions of one who changes nothing."""

OVER_FP32 = "speedup_over_fp32"
"""The speedup of a row over fp32, where advice is against `default`."""

LARGEST_SPEEDUP = 64.0
"""More than any hardware gains by computing in half precision: twice the 30 times that datasheets promise at most."""

UPDATES_UNKNOWN = "its updates not measured"
"""What is said of a training in half of which it is not known whether updates arrive."""

BUSY_ENOUGH = 0.7
"""An accelerator that has work for a smaller share of a step waits for launches: what takes it less time saves less."""

MEMORY_WORTH_SAYING = 0.95
"""The largest ratio of peak memory that is mentioned as a saving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The precision to take (None: no advice is possible), a sentence that says why, the column that decided.

    `gains` is what it gains over what a user runs today ("": nothing, or that is not known), `why` what the sentence
    says beside the precision and its numbers, "" where these say all, `caveat` what makes it uncertain ("": nothing);
    the `why` of who stays in today's precision says that, too. `few_rounds`: `why` names a speed that has no interval.
    `remark` is what arithmetic knows of training in it, or in the one that is passed over for an objection, without a
    measurement, which steps GradScaler skips at first in it, and whether steps are bound by their launches ("":
    nothing). `case_id` is that of the very case: a precision may have several, with other inputs or without a scaler.
    `passed_id` is that of the one that is faster, or may be, and that an objection keeps from being taken (None: there
    is none). `objections` are those to all cases that were measured but fp32's, None where there is none; nothing is
    said of any whose network is at fault.
    """

    group: Group
    precision: str | None
    column: str
    sentence: str
    gains: str = ""
    why: str = ""
    caveat: str = ""
    few_rounds: bool = False
    remark: str = ""
    case_id: str | None = None
    passed_id: str | None = None
    objections: Mapping[str, Objection | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What a run tells of how far its times can be trusted.

    `apart` is by what factor two measurements of its control differ (1: by nothing, or there is none), `cause` why its
    rounds were unfit (`fitness.unfit_said`; "": they were not).
    """

    apart: float = 1.0
    cause: str = ""


QUIET = Trust()
"""Of a run that says nothing against its times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What is decided for a group: the row to take (None: no advice), the deciding column, and what is said.

    `passed` is the row that is faster, or may be, and that an objection keeps from being taken (None: there is none),
    `objections` are those to all rows, by case id.
    """

    row: Row | None
    column: str
    sentence: str
    gains: str = ""
    why: str = ""
    caveat: str = ""
    few_rounds: bool = False
    passed: Row | None = None
    objections: Mapping[str, Objection | None] = field(default_factory=dict)


def advise(
    rows: Iterable[Row],
    divergences: Mapping[str, Divergence],
    budget: Budget,
    rounds: Mapping[str, Sequence[Round]] | None = None,
    trust: Trust = QUIET,
    trained: "Mapping[str, Trained] | None" = None,
) -> dict[Group, Advice]:
    """Return one piece of advice for every group in which anything was measured.

    `divergences` by case id tell what the frame does not: the number of decisions behind an agreement, skipped steps,
    why an error is undefined. Without a case's divergence its agreement is judged as it stands. `rounds` by case id,
    without the control's, let speeds be compared round by round. What whole trainings showed of a case, `trained` by
    case id, counts instead of what one step says of it. Speed and memory are judged against what a user runs today:
    `default` where that was measured, else fp32.
    """
    advice = {}
    measured = {
        group: _against_todays(members)
        for group, members in grouped(rows).items()
        if any(row["outcome"] == "ok" for row in members)
    }
    gains = _Gains(rounds or {})
    for group, members in measured.items():
        found = _decide(members, divergences, budget, gains, trust, trained or {})
        advice[group] = Advice(
            group=group,
            precision=found.row["precision"] if found.row else None,
            column=found.column,
            sentence=found.sentence,
            gains=found.gains,
            why=found.why,
            caveat=found.caveat,
            few_rounds=found.few_rounds,
            remark="; ".join(filter(None, [_remark(found, divergences), _launch_bound(group, members, gains)])),
            case_id=found.row["case_id"] if found.row else None,
            passed_id=found.passed["case_id"] if found.passed else None,
            objections=found.objections,
        )
    return advice


def advise_run(
    stored: "StoredRun", rows: Iterable[Row], budget: Budget, studies: "Iterable[StoredRun]" = ()
) -> dict[Group, Advice]:
    """Return the advice of a whole run, whose `rows` are given, from each case's rounds without the control's.

    What `studies` of convergence found of its cases counts for more than one step (`trained_cases`).
    """
    rounds, trust = _evidence(stored)
    trained: Mapping[str, Trained] = {}
    if trainings := list(studies):
        from ampbench.instruments.convergence.learning import trained_cases

        trained = trained_cases(stored, trainings)
    return advise(rows, stored.divergence, budget, rounds, trust, trained)


def across_tables(stored: "StoredRun", rows: Iterable[Row], advice: Mapping[Group, Advice]) -> list[str]:
    """Return a line for each workload and phase whose fastest way is in another table than the plain one.

    The tables differ in memory format, path or `sdpa`; in the plain one, which is contiguous and eager, torch chooses
    that. Of each counts what the `advice` on it takes. The gain over plain fp32, and over what is advised there, must
    be certain.
    """
    tables: dict[tuple[object, ...], dict[Group, list[Row]]] = {}
    for group, members in grouped(rows).items():
        key = group.workload, group.parameters, group.batch_size, group.recipe, group.device, group.phase
        tables.setdefault(key, {})[group] = members
    several = [members for members in tables.values() if len(members) > 1]
    if not several:
        return []
    rounds, trust = _evidence(stored)
    gains = _Gains(rounds)
    return [said for members in several if (said := _fastest_table(members, advice, gains, trust))]


def _fastest_table(
    members: Mapping[Group, list[Row]],
    advice: Mapping[Group, Advice],
    gains: "_Gains",
    trust: Trust,
) -> str:
    """Say which of the tables of a workload and phase has the fastest way that is advised; "" where it is the plain."""
    taken = {
        group: row
        for group, group_rows in members.items()
        for row in group_rows
        if group in advice and row["case_id"] == advice[group].case_id and number(row["seconds_median"])
    }
    plain = next((one for one in taken if (one.memory_format, one.sdpa, one.path) == ("contiguous", "", "eager")), None)
    if plain is None:
        return ""
    baseline = next((row for row in members[plain] if row["precision"] == _todays(members[plain])), taken[plain])
    group = min(taken, key=lambda one: number(taken[one]["seconds_median"]) or math.inf)
    best = taken[group]
    gain = (number(baseline["seconds_median"]) or 0.0) / best["seconds_median"]
    certain = all(_is_faster(best, other, gains) for other in (baseline, taken[plain]))
    if group == plain or not certain or not max(WORTH, trust.apart) < gain <= LARGEST_SPEEDUP:
        return ""
    traits = [
        (getattr(group, name), getattr(plain, name))
        for name in ("memory_format", "path")
        if getattr(group, name) != getattr(plain, name)
    ]
    traits += [(f"sdpa {group.sdpa}", f"sdpa {TORCHS_CHOICE}")] if group.sdpa else []
    there, here = (", ".join(side) for side in zip(*traits, strict=True))
    caveat = _caveat(best, trust)
    batch = "" if group.batch_size is None else f"batch {group.batch_size}"
    of = " ".join(filter(None, [group.workload, batch, group.phase]))
    return (
        f"of the {len(members)} tables of {of}, {precision_label(best)} in "
        f"{there} is fastest: {times(gain)} the speed of {precision_label(baseline)} in {here}"
        f"{_in_brackets(caveat)}"
    )


def _evidence(stored: "StoredRun") -> tuple[dict[str, list[Round]], Trust]:
    """Return the rounds of each case of a run without the control's, and how far its times can be trusted."""
    from ampbench.judge import fitness

    control = fitness.control_ratio(stored)
    return own_rounds(stored), Trust(apart=control.apart if control else 1.0, cause=fitness.unfit_said(stored))


def _decide(
    rows: list[Row],
    divergences: Mapping[str, Divergence],
    budget: Budget,
    gains: "_Gains",
    trust: Trust,
    trained: "Mapping[str, Trained]",
) -> _Choice:
    """Return what to take of the rows of one group."""
    for row in rows:
        found = divergences.get(row["case_id"])
        if found is None:
            continue
        of_fp32 = row["precision"] == BASELINE and row["outcome"] == "ok"
        fault = no_precisions_fault(found) or (fp32s_fault(found) if of_fp32 else None)
        if fault is not None:
            return _none(fault[0], words(fault[1]))
    one_step = objections_of(rows, divergences, budget, gains.rounds)
    objections = {case_id: _overridden(one, trained.get(case_id)) for case_id, one in one_step.items()}

    def within(row: Row) -> str:
        case_id = row["case_id"]
        return _within(row, budget, trained.get(case_id), one_step[case_id], divergences.get(case_id))

    return replace(_chosen(rows, gains, trust, objections, within), objections=objections)


def _chosen(
    rows: list[Row],
    gains: "_Gains",
    trust: Trust,
    objections: Mapping[str, Objection | None],
    within: Callable[[Row], str],
) -> _Choice:
    """Return what to take of the rows of one group, but for `objections`; `within` says what its errors are within."""
    baseline = next((row for row in rows if row["precision"] == _todays(rows)), None)
    others = [row for row in rows if row["outcome"] == "ok" and row["precision"] not in TODAYS]
    others.sort(key=lambda row: number(row["seconds_median"]) or math.inf)
    passing = [row for row in others if objections[row["case_id"]] is None]

    if baseline is None or baseline["outcome"] == "skipped":
        return _none("outcome", "fp32 was not measured here, and speedups are stated against it")
    if baseline["outcome"] != "ok":
        if not passing:
            return _none("outcome", "fp32 failed, and no other precision is within the error budget")
        why = "fp32 failed, and this is the fastest within the error budget"
        return _Choice(row=passing[0], column="outcome", sentence=f"take {precision_label(passing[0])}: {why}", why=why)

    comparable = [row for row in others if number(row["speedup_vs_fp32"]) is not None]
    rest = [row for row in rows if row["precision"] not in TODAYS]
    if not comparable and all(row["outcome"] == "skipped" for row in rest):
        return _none("outcome", "no other precision was measured")
    faster = [row for row in comparable if _is_faster(row, baseline, gains)]
    if faster and faster[0]["speedup_vs_fp32"] > LARGEST_SPEEDUP:
        gained = faster[0]["speedup_vs_fp32"]
        than = baseline["precision"]
        why = f"{precision_label(faster[0])} took 1/{gained:.0f} of {than}'s time, which no hardware does"
        return _none("speedup_vs_fp32", "; ".join(filter(None, [why, trust.cause])), on_speed=True)
    faster = [row for row in faster if row["speedup_vs_fp32"] >= WORTH]
    if not faster:
        savers = [row for row in comparable if row in passing and _saves(row, baseline, gains)]
        if savers:
            chosen = min(savers, key=lambda row: number(row["memory_ratio_vs_fp32"]) or math.inf)
            return _taken(chosen, chosen, comparable, faster, objections, within(chosen), trust)
        return _stay(baseline, comparable, objections, gains, trust)
    passing = [row for row in faster if objections[row["case_id"]] is None]
    if not passing:
        objection = objections[faster[0]["case_id"]]
        assert objection is not None
        speed = f"{_speed(faster[0])}{_in_brackets(_caveat(faster[0], trust))}"
        why = "; ".join(filter(None, [f"{speed}, but {words(objection.reason)}", _instead(objection)]))
        if objection.column == "chance_rel_l2":
            return _none("output_rel_l2", why)
        sentence = f"stay in {baseline['precision']}: {why}"
        return _Choice(
            row=baseline,
            column=objection.column,
            sentence=sentence,
            why=why,
            few_rounds=_has_few_rounds(faster[0]),
            passed=faster[0],
        )

    equals = [row for row in passing if row is passing[0] or not _is_faster(passing[0], row, gains)]
    chosen = min(equals, key=lambda row: judged_error(row) or 0.0)
    gained = chosen["speedup_vs_fp32"]
    if gained <= trust.apart:
        why = f"{_speed(chosen)}, and the run's own control, one case measured twice, is {trust.apart - 1:.0%} apart"
        return _none("speedup_vs_fp32", "; ".join(filter(None, [why, trust.cause])), on_speed=True)
    return _taken(chosen, passing[0], comparable, faster, objections, within(chosen), trust)


def _todays(rows: Iterable[Row]) -> str:
    """Return the precision of a group that a user runs who changes nothing: `default` where it was measured."""
    measured = {row["precision"] for row in rows if row["outcome"] == "ok"}
    return DEFAULT if DEFAULT in measured else BASELINE


def _against_todays(rows: list[Row]) -> list[Row]:
    """Return the rows of a group with speed and memory as times those of `default`, where that was measured.

    Then `OVER_FP32` is the speed as times that of fp32. Where it was not measured, what torch ships is fp32 there, or
    is not known, and the rows are as they are.
    """
    today = next((row for row in rows if row["precision"] == DEFAULT and row["outcome"] == "ok"), None)
    if today is None:
        return rows
    seconds, memory = number(today["seconds_median"]), number(today.get("peak_memory_bytes"))

    def ratio(numerator: float | None, denominator: float | None) -> float | None:
        return numerator / denominator if numerator and denominator else None

    return [
        {
            **row,
            OVER_FP32: row["speedup_vs_fp32"],
            "speedup_vs_fp32": ratio(seconds, number(row["seconds_median"])),
            "memory_ratio_vs_fp32": ratio(number(row.get("peak_memory_bytes")), memory),
        }
        for row in rows
    ]


def _than(row: Row) -> str:
    """Return what the speed of a row is told as times of."""
    return DEFAULT if OVER_FP32 in row else BASELINE


def _overridden(objection: Objection | None, trained: "Trained | None") -> Objection | None:
    """Return what keeps a row from being advised where whole trainings may have told: they count for more."""
    if trained is None:
        return objection
    if trained.trains:
        return None
    return object_to("outcome", Refusal.TRAINS_WORSE, why=trained.reason, study=trained.study)


def _instead(objection: Objection) -> str:
    """Return what to do instead of what an objection keeps from being advised, "" where nothing is known."""
    return words(objection.instead) if objection.instead is not None else ""


def _within(
    row: Row, budget: Budget, trained: "Trained | None", objection: Objection | None, found: Divergence | None
) -> str:
    """Return what the errors of an advised row are within, or that a training overrides what one step objects to.

    Of weights that are stored in half it says where nobody knows whether updates arrive in them.
    """
    if trained is not None:
        whatever = "" if objection is None else f", though after one step {words(objection.reason)}"
        return f"trains as fp32 does{whatever} ({trained.study})"
    error = judged_error(row)
    assert error is not None  # an undefined error is an objection
    least = f", argmax {proven}" if (proven := least_agreement(row, budget.argmax_agreement)) else ""
    own = PRECISIONS.get(row["precision"])
    halved = own is not None and own.storage != "float32" and not own.master and row["phase"] == "training"
    unknown = halved and found is not None and (found.update is None or found.update.kept is None)
    known = f"error {error_said(row, error)}{in_output(row)} of {budget.output_rel_l2:g} allowed{least}"
    return f"{known}, {UPDATES_UNKNOWN}" if unknown else known


def _none(column: str, why: str, *, on_speed: bool = False) -> _Choice:
    """Return that there is no advice, and why."""
    return _Choice(row=None, column=column, sentence=f"no advice{' on speed' if on_speed else ''}: {why}", why=why)


def _taken(
    chosen: Row,
    fastest: Row,
    comparable: list[Row],
    faster: list[Row],
    objections: Mapping[str, Objection | None],
    within: str,
    trust: Trust,
) -> _Choice:
    """Return that `chosen` is advised, with what it gains and what it passes over, and why.

    `within` says what its errors are within.
    """
    gained, memory = chosen["speedup_vs_fp32"], number(chosen["memory_ratio_vs_fp32"])
    saved = f"{times(memory)} the memory" if memory is not None and memory <= MEMORY_WORTH_SAYING else ""
    if gained >= WORTH:
        gains = f"{times(gained)} the speed{f' and {saved}' if saved else ''} of {_than(chosen)}"
    else:
        gains = f"{saved} of {_than(chosen)} at its speed"
    if (true := number(chosen.get(OVER_FP32))) is not None:
        gains += f" ({times(true)} the speed of fp32 with tf32 off)"
    caveat = _caveat(chosen, trust)
    sentence = f"take {precision_label(chosen)}: {gains}, {within}{_in_brackets(caveat)}"
    column, why = "speedup_vs_fp32" if gained >= WORTH else "memory_ratio_vs_fp32", ""
    passed: Row | None = None
    for row in (row for row in comparable if row["seconds_median"] < chosen["seconds_median"]):
        objection = objections[row["case_id"]]
        if row in faster and objection is not None:
            column, why, passed = objection.column, f"{_speed(row)}, but {words(objection.reason)}", row
            if objection.remedy not in ("", chosen["precision"]):
                why += f"; {_instead(objection)}"
            break
        looks = row not in faster and objection is None and row["speedup_vs_fp32"] >= WORTH * max(gained, 1.0)
        if looks:
            speed = times(row["speedup_vs_fp32"])
            why = f"{precision_label(row)} looks {speed} as fast, but that is not certain; more --rounds may tell"
            break
    if not why and chosen is not fastest:
        why = f"{precision_label(fastest)} is as fast within the intervals, with more error"
        column = "output_rel_l2"
    sentence += f"; {why}" if why else ""
    return _Choice(row=chosen, column=column, sentence=sentence, gains=gains, why=why, caveat=caveat, passed=passed)


def _remark(choice: _Choice, divergences: Mapping[str, Divergence]) -> str:
    """Return what is to be known beside a choice: by arithmetic, and of the steps that GradScaler skips at first."""
    taken = divergences.get(choice.row["case_id"]) if choice.row is not None else None
    return "; ".join(filter(None, [_arithmetic(choice, divergences), scale_said(taken)]))


def _launch_bound(group: Group, rows: Sequence[Row], gains: "_Gains") -> str:
    """Say of which rows of a group the accelerator has work for less than `BUSY_ENOUGH` of a step, and what helps.

    That no precision helps is said where it is so of all rows, and none of them was faster than what a user runs today.
    """
    measured = [row for row in rows if row["outcome"] == "ok"]
    told = [(row, share) for row in measured if (share := number(row.get("busy_share"))) is not None]
    bound = [row for row, share in told if share < BUSY_ENOUGH]
    if not bound:
        return ""
    ends = sorted(share for _, share in told if share < BUSY_ENOUGH)
    busy = "–".join(dict.fromkeys(format_share(end) for end in (ends[0], ends[-1])))
    baseline = next((row for row in measured if row["precision"] == _todays(measured)), None)
    others = [row for row in measured if row is not baseline and row["precision"] != BASELINE]
    where = f" in {few(map(precision_label, bound))}:"
    if len(bound) == len(measured) and baseline is not None and others:
        if all(_is_no_faster(row, baseline, gains) for row in others):
            where = ": no precision helps;"
        elif not any(_is_faster(row, baseline, gains) for row in others):
            where = ": no precision is seen to help;"
    mode = compile_mode(group.path)
    fewer = f"--path {COMPILED}" if group.path == "eager" else ""
    if group.device == "cuda" and mode not in WITH_GRAPHS:
        fewer = f"{'' if mode else f'--path {COMPILED} '}--compile-mode {WITH_GRAPHS[0]}"
    remedy = "larger batch" + (f", or {fewer}" if fewer else "")
    return f"launch-bound{where} {remedy} (the device has work for {busy} of a step)"


def scale_said(found: Divergence | None) -> str:
    """Say which steps GradScaler skips from its default scale down to the one that settled, and what spares them.

    Its scale is halved at each step that overflows. "" where the default is not too large, and without a scaler.
    """
    scaler = ScalerSetting(name="default")
    if found is None or not found.scaler_scale or found.scaler_scale >= scaler.init_scale:
        return ""
    skipped = round(math.log(found.scaler_scale / scaler.init_scale, scaler.backoff_factor))
    which = "step" if skipped == 1 else f"{skipped} steps"
    remedy = f"begin at init_scale={found.scaler_scale:g}"
    return f"GradScaler skips the first {which} at its default scale of {scaler.init_scale:,.0f}: {remedy}"


def _arithmetic(choice: _Choice, divergences: Mapping[str, Divergence]) -> str:
    """Return what arithmetic knows of training in the precision that is taken, else in the one that is passed over."""
    for row in (choice.row, choice.passed):
        found = divergences.get(row["case_id"]) if row is not None else None
        precision = PRECISIONS.get(row["precision"]) if row is not None else None  # a foreign run may have others
        if precision is not None and found is not None and (said := remark_line(found.recipe, precision)):
            return said
    return ""


def _in_brackets(caveat: str) -> str:
    """Return a caveat as it stands behind what it is about; "" where there is none."""
    return f" (not certain: {caveat})" if caveat else ""


def _caveat(row: Row, trust: Trust) -> str:
    """Say what makes the speed of `row` uncertain: too few rounds, a machine that was not quiet."""
    return "; ".join(filter(None, [FEW_ROUNDS if _has_few_rounds(row) else "", trust.cause]))


def _has_few_rounds(row: Row) -> bool:
    """Return whether a row has too few rounds for an interval."""
    return number(row["seconds_high"]) is None


def _stay(
    baseline: Row, comparable: list[Row], objections: Mapping[str, Objection | None], gains: "_Gains", trust: Trust
) -> _Choice:
    """Return that no other precision is known to be faster than fp32, and the best of them.

    That nothing is faster takes the proof that a speedup takes: of every one, the gain is certainly under 2%, and the
    control is no further apart than the loss. Where that is so of all that nothing is objected to, no further round
    would change what is taken, and the objection to the fastest other one is told.
    """
    column, caveat, passed = "speedup_vs_fp32", "", None
    if not comparable:
        why = "every other precision failed"
    else:
        undecided = [
            row
            for row in comparable
            if row["speedup_vs_fp32"] * trust.apart > WORTH or not _is_no_faster(row, baseline, gains)
        ]
        passing = [row for row in undecided if objections[row["case_id"]] is None]
        best = (passing or undecided or comparable)[0]
        said = f"at best {precision_label(best)} with {times(best['speedup_vs_fp32'])}"
        objection = objections[best["case_id"]]
        if not undecided:
            caveat = _caveat(best, trust)
            why = f"nothing is faster, {said}{_in_brackets(caveat)}"
        elif objection is not None:
            other = f"{precision_label(best)} may be ({times(best['speedup_vs_fp32'])} the speed)"
            if any(objections[row["case_id"]] is None for row in comparable):
                caveat = _caveat(best, trust)
            nothing = f"nothing within the error budget is faster{_in_brackets(caveat)}"
            reasons = [nothing, f"{other}, but {words(objection.reason)}", _instead(objection)]
            why, column, passed = "; ".join(filter(None, reasons)), objection.column, best
        elif _has_few_rounds(best):
            why, caveat = f"no speedup is certain, {said}: {FEW_ROUNDS}", FEW_ROUNDS
        else:
            caveat = trust.cause or "more --rounds may tell"
            why = f"no speedup is certain, {said}; {caveat}"
    sentence = f"stay in {baseline['precision']}: {why}"
    return _Choice(row=baseline, column=column, sentence=sentence, why=why, caveat=caveat, passed=passed)


def _is_faster(row: Row, other: Row, gains: "_Gains") -> bool:
    """Return whether `row` takes less time than `other`, certainly; without any interval, that is 5% less."""
    interval = gains.of(row, other)
    if interval is not None:
        return interval[0] > 1.0
    mine, theirs = number(row["seconds_median"]), number(other["seconds_median"])
    return mine is not None and theirs is not None and theirs >= FASTER_WITHOUT_INTERVALS * mine


def _is_no_faster(row: Row, other: Row, gains: "_Gains") -> bool:
    """Return whether what `row` may gain over `other` is certainly under 2%; without any interval, it is 5% slower."""
    interval = gains.of(row, other)
    return interval[1] < WORTH if interval is not None else _is_faster(other, row, gains)


def _saves(row: Row, other: Row, gains: "_Gains") -> bool:
    """Return whether `row` takes less memory than fp32 and certainly no more time than `other`, but for under 2%."""
    memory, interval = number(row["memory_ratio_vs_fp32"]), gains.of(row, other)
    return memory is not None and memory <= MEMORY_WORTH_SAYING and interval is not None and interval[0] > 1 / WORTH


class _Gains:
    """How many times as fast as others rows are, by the `rounds` of each case.

    The precisions of a table are measured next to each other in every round, so their times are compared round by
    round: of three common rounds and more it is the t interval of the paired log-ratios.
    """

    def __init__(self, rounds: Mapping[str, Sequence[Round]]):
        self.rounds = rounds
        self._values: dict[str, dict[int, float]] = {}
        self._paired: dict[tuple[str, str], tuple[float, float] | None] = {}

    def of(self, row: Row, other: Row) -> tuple[float, float] | None:
        """Return the 95% interval of how many times as fast as `other` a row is; None where there are rounds too few.

        Without three common rounds, it is what the intervals of both leave open.
        """
        key = row["case_id"], other["case_id"]
        if key not in self._paired:
            self._paired[key] = self._over_common_rounds(*key)
        if (interval := self._paired[key]) is not None:
            return interval
        ends = [number(one[end]) for one in (row, other) for end in ("seconds_low", "seconds_high")]
        low, high, other_low, other_high = ends
        if low and high and other_low and other_high:
            return other_low / high, other_high / low
        return None

    def _over_common_rounds(self, case_id: str, other_id: str) -> tuple[float, float] | None:
        from ampbench.base.stats import log_t_interval  # imports NumPy: not for `--help`

        own, theirs = self._seconds(case_id), self._seconds(other_id)
        common = [(own[each], theirs[each]) for each in own.keys() & theirs.keys()]
        ratios = [their_seconds / seconds for seconds, their_seconds in common if seconds > 0 and their_seconds > 0]
        return log_t_interval(ratios)

    def _seconds(self, case_id: str) -> dict[int, float]:
        """Return what the rounds of a case are worth, by their numbers."""
        from ampbench.base.stats import round_value

        if case_id not in self._values:
            found = self.rounds.get(case_id, ())
            self._values[case_id] = {
                each.round: round_value(each.samples, each.cpu_samples, each.windows) for each in found
            }
        return self._values[case_id]


def _speed(row: Row) -> str:
    """Say how fast a row is, or looks where no interval is known."""
    return f"{precision_label(row)} {'looks' if _has_few_rounds(row) else 'is'} {times(row['speedup_vs_fp32'])} as fast"
