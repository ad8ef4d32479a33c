"""What is to be said beside a run's numbers: for which device they speak, how quiet it was, what was not measured."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ampbench.base.precisions import PRECISIONS
from ampbench.base.units import counted, format_percent, format_share
from ampbench.instruments.ceilings.findings import BINDING, Bounds, disturbance, shown
from ampbench.instruments.ceilings.records import Ceiling
from ampbench.judge import frame
from ampbench.judge.advice import TODAYS, Advice
from ampbench.judge.pairing import not_the_commits
from ampbench.judge.rows import Group, Row, burst, grouped, number, precision_label
from ampbench.present.wording import words
from ampbench.records.labels import (
    case_labels,
    device_statement,
    emulated_of,
    few,
    gathered,
    kernels_said,
    limited_power,
    outcome_said,
    remarks,
)
from ampbench.records.measured import CHANCE, LIMITS, NATIVE, Divergence, Round
from ampbench.records.run import Imported
from ampbench.store import StoredRun, once
from ampbench.workloads.index import LIBRARIES, RANDOM

FPMATH_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""Environment variables that decide, whatever torch's switches say, how fp32 products are rounded."""
CEILING_REACHED = 1.05
"""No case can attain more than this share of a ceiling: what remains is the noise of two measurements."""


@once
def _labels(stored: StoredRun) -> dict[str, str]:
    """Return a short name for each case of a run by its id."""
    return case_labels(stored.cases.values())


@once
def _bare_labels(stored: StoredRun) -> dict[str, str]:
    """Return the same without the precision."""
    return case_labels(stored.cases.values(), precision=False)


class Note(NamedTuple):
    """A sentence about a run; a `warning` is one that no reader of its numbers may miss."""

    text: str
    warning: bool = False


def statements(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Return for which devices the rows speak, what the file has lost, and what a control of theirs says."""
    environment, imported = stored.header.environment, stored.header.imported
    devices = [environment.device(name) for name in measured_devices(rows)]
    said = [Note(line, warning=True) for line in _unsound(stored, rows)]
    able = [shown(one, stored.every(Ceiling)) for one in devices if one is not None]
    for one in able:
        ran = {row["precision"] for row in rows if row["device"] == one.type and row["outcome"] == "ok"}
        said.append(Note(device_statement(one, environment, ran), bool(emulated_of(one, ran))))
    if stored.lost:
        said.append(Note(f"this run {stored.lost}", warning=True))
    if imported is not None:
        said.append(Note(import_statement(imported, bool(stored.readings)), warning=True))
    if other_code := not_the_commits(stored.header):
        said.append(Note(other_code, warning=True))
    control = frame.control_ratio(stored)
    if control is not None and any(row["case_id"] == control.case_id for row in rows):
        said.append(Note(control.sentence))
    for told in (
        _by_chance,
        _changed_in_place,
        _come_compiled,
        _fp32_products,
        _attention,
        _users_switches,
        _preset_unused,
        _random_weights,
        _ceilings_used,
        _ceilings_lacking,
        _above_ceiling,
        _device_limits,
        _slower_under_load,
        _not_at_rest,
        _others_on_device,
        _state_on_host,
        _graphs_left_aside,
        _busy_untold,
        _untold,
    ):
        said += told(stored, rows)
    causes = frame.unquiet(stored)
    if causes and set(measured_devices(rows)) != {"cpu"} and frame.unsteady_device(stored):
        text = (
            f"the accelerator was not steady: {'; '.join(causes)}: let it cool, or end what else runs on it, and "
            "measure again, or hold its clock (nvidia-smi --lock-gpu-clocks) where a speedup is all that matters"
        )
        said.append(Note(text, warning=True))
    elif causes:
        threads = (
            "" if stored.header.settings.threads == 1 or "cpu" not in measured_devices(rows) else "--threads 1 and "
        )
        text = (
            f"this machine was not quiet: {'; '.join(causes)}; other work here or on its host delays steps: measure "
            f"again when it has ended, or with {threads}more --rounds"
        )
        said.append(Note(text, warning=True))
    return said


def _by_chance(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say of which workloads the errors mean nothing."""
    apart: dict[str, float] = {}
    for row in rows:
        found = stored.divergence.get(row["case_id"])
        if found is not None and found.chance_rel_l2 is not None:
            apart[row["workload"]] = max(found.chance_rel_l2, apart.get(row["workload"], 0.0))
    return [Note(f"{workload}: {CHANCE.format(value)}", warning=True) for workload, value in apart.items()]


def _changed_in_place(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say which workloads write into what they are given, and what was done about it."""
    shown = {row["case_id"]: row["workload"] for row in rows}
    changed: dict[str, list[str]] = {}
    for each in stored.rounds:
        if each.case_id in shown and each.changed_in_place:
            names = changed.setdefault(shown[each.case_id], [])
            names += [name for name in each.changed_in_place if name not in names]
    return [
        Note(
            f"{workload} changes in place what it is given ({few(names)}): that is put back before every step, errors "
            "are those of a first step, and each timed sample is one step",
            warning=True,
        )
        for workload, names in changed.items()
    ]


def _unsound(stored: StoredRun, rows: Sequence[Row]) -> list[str]:
    """Say of which cases outputs or gradients are not finite, and whose errors are not against fp64."""
    return gathered(
        ((_labels if one.of_precision else _bare_labels)(stored)[row["case_id"]], words(one.statement))
        for row in rows
        if row["outcome"] == "ok" and (found := stored.divergence.get(row["case_id"])) is not None
        for one in remarks(found)
    )


def _come_compiled(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say which workloads torch.compile had compiled before they came, whatever their path is called."""
    compiled = {one.case_id for one in stored.rounds if one.comes_compiled}
    named = dict.fromkeys(row["workload"] for row in rows if row["case_id"] in compiled)
    said = "comes compiled by torch.compile: its path eager is that compiled code"
    return [Note(f"{name} {said}", warning=True) for name in named]


def _fp32_products(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say which cases round fp32 products and should not, and which find no kernel that does."""
    rounded = rounded_products(stored)
    said: list[tuple[str, str]] = []
    different: list[tuple[str, str]] = []
    for row in rows:
        case_id, precision = row["case_id"], PRECISIONS.get(row["precision"])
        if precision is None or row["outcome"] != "ok" or (found := rounded.get(case_id)) is None:
            continue
        if precision.fp32_products == "ieee" and found:
            said.append(
                (_labels(stored)[case_id], f"fp32 is not fp32 here: {rounding_said(found)}{_by_variable(stored)}")
            )
        elif precision.fp32_products in ("tf32", "bf16") and not found:
            no = f"no fp32 product was rounded to {precision.fp32_products}: this is fp32{_by_variable(stored)}"
            different.append((_labels(stored)[case_id], no))
        elif precision.fp32_products == "shipped" and found:
            different.append((_labels(stored)[case_id], rounding_said(found)))
    return [*(Note(line, warning=True) for line in gathered(said)), *map(Note, gathered(different))]


def rounded_products(stored: StoredRun) -> dict[str, dict[str, str]]:
    """Return how fp32 products of each case were rounded, in any of its processes; without those that do not tell."""
    rounded: dict[str, dict[str, str]] = {}
    told: list[Round | Divergence] = [*stored.rounds, *stored.divergence.values()]
    for one in told:
        if one.fp32_products is not None:
            rounded.setdefault(one.case_id, {}).update(one.fp32_products)
    return rounded


def rounding_said(found: Mapping[str, str]) -> str:
    """Say how fp32 products are rounded: "factors of matrix products are rounded to tf32"."""
    kinds = {"matmul": "matrix products", "conv": "convolutions"}
    by_dtype: dict[str, list[str]] = {}
    for kind, dtype in found.items():
        by_dtype.setdefault(dtype, []).append(kinds.get(kind, kind))
    return ", ".join(f"factors of {' and '.join(names)} are rounded to {dtype}" for dtype, names in by_dtype.items())


def _by_variable(stored: StoredRun) -> str:
    variables = stored.header.environment.variables
    set_ = [f"{name}={variables[name]}" for name in FPMATH_VARIABLES if name in variables]
    return f" ({', '.join(set_)})" if set_ else ""


def _attention(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say in which tables attention does not run in one kernel in all precisions."""
    tables: dict[Group, dict[str, list[str]]] = {}
    named: dict[Group, str] = {}
    for group, members in grouped(rows).items():
        for row in members:
            found = stored.memory.get(row["case_id"])
            if row["outcome"] == "ok" and found is not None and found.attention is not None:
                kernels = tables.setdefault(group, {})
                kernels.setdefault(kernels_said(found.attention), []).append(precision_label(row))
                named[group] = _bare_labels(stored)[row["case_id"]]
    said = []
    for group, kernels in tables.items():
        if len(kernels) > 1:
            ran = "; ".join(f"by {kernel} in {', '.join(names)}" for kernel, names in kernels.items())
            what = "part of the difference, in time and error, is the kernel's"
            held = "" if any(NATIVE in kernel for kernel in kernels) else "; --sdpa math holds all to one"
            said.append((named[group], f"attention runs {ran}: {what}{held}"))
    return [Note(line) for line in gathered(said)]


def _users_switches(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say once which switches of torch a user's code sets, and what became of them."""
    own = dict.fromkeys(row["workload"] for row in rows if row["family"] == "user")
    kept = stored.header.settings.keep_flags
    done = (
        "kept, but for those that define a precision; `default` has all"
        if kept
        else "measured with these as torch ships them; --keep-flags leaves them as they are set"
    )
    by_switches: dict[tuple[str, ...], list[str]] = {}
    for source in stored.header.sources:
        if source.name in own and source.switches:
            by_switches.setdefault(source.switches, []).append(source.name)
    return [
        Note(f"{few(names)} {'sets' if len(names) == 1 else 'set'} {', '.join(switches)}: {done}", warning=not kept)
        for switches, names in by_switches.items()
    ]


def _preset_unused(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say of which workloads a preset that was asked for sets nothing."""
    preset = stored.header.selection.preset
    own = dict.fromkeys(row["workload"] for row in rows if row["family"] == "user")
    if not preset or not own:
        return []
    return [Note(f"--preset {preset} sets the sizes of built-in workloads, and none of {few(own)}: theirs are --set")]


def _random_weights(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say of networks by name that nobody has trained them."""
    shown = {row["case_id"] for row in rows}
    cases = [case for case_id, case in stored.cases.items() if case_id in shown]
    untrained = [
        case.workload for case in cases if case.family in LIBRARIES and case.parameters.get("weights") == RANDOM
    ]
    said = "random weights: errors are not those of a trained network; --set weights=PATH takes one's"
    return [Note(f"{few(untrained)}: {said}", warning=True)] if untrained else []


def _ceilings_used(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say which runs the ceilings are of that shares are told of, and which of them others may have lowered."""
    bounds = Bounds(stored.every(Ceiling))
    held = [row["case_id"] for row in rows if number(row["ceiling_share"]) is not None]
    found = [bounds.of(stored.memory.get(case_id), stored.cases[case_id].device).used for case_id in held]
    used = list({(one.device, one.operation, one.dtype): one for each in found for one in each}.values())
    runs = list(dict.fromkeys(one.run for one in used if one.run))
    disturbed = {f"{one.operation} {one.dtype}": taken for one in used if (taken := disturbance(one))}
    named = f"ceilings: of run {few(runs)}" if runs else "ceilings: of this run"
    if not disturbed:
        return [Note(named)] if runs else []
    text = (
        f"{named}; other work took up to {format_share(max(disturbed.values()))} of the CPU's time while "
        f"{few(disturbed)} {'was' if len(disturbed) == 1 else 'were'} measured: shares of them may be too high; "
        "measure the ceilings again: ampbench study ceilings"
    )
    return [Note(text, warning=True)]


def _ceilings_lacking(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say of which operations there is no ceiling, although there are others of the device: shares cannot be told."""
    known = {one.device for one in stored.every(Ceiling)}
    bounds = Bounds(stored.every(Ceiling))
    ok = [row for row in rows if row["outcome"] == "ok" and row["device"] in known]
    found = [bounds.of(stored.memory.get(row["case_id"]), row["device"]).lacking for row in ok]
    lacking = dict.fromkeys(f"{BINDING[operation]} in {dtype}" for each in found for operation, dtype in each)
    if not lacking:
        return []
    return [Note(f"no ceiling of {few(lacking)} is known here: ampbench study ceilings, then measure anew")]


def _device_limits(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say which devices may take less power than by default."""
    said = []
    for name in measured_devices(rows):
        device = stored.header.environment.device(name)
        if device is not None and device.state is not None and (limited := limited_power(device.state)):
            said.append(Note(f"{name} {limited}: times are those under this limit", warning=True))
    return said


def _slower_under_load(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say of which cases an accelerator does not keep up its fastest step, and what held its clock down."""
    slower = {
        row["case_id"]: row["seconds_median"] / fastest - 1
        for row in rows
        if row["outcome"] == "ok" and (fastest := burst(row)) is not None
    }
    if not slower:
        return []
    labels = _labels(stored)
    told = [one.telemetry for one in stored.rounds if one.case_id in slower and one.telemetry is not None]
    falls = [
        (one.clock_hz / one.warm_clock_hz, one.warm_clock_hz, one.clock_hz)
        for one in told
        if one.clock_hz and one.warm_clock_hz
    ]
    why = ""
    if falls and (most := min(falls))[0] < 1:
        why = f"; its clock fell from {most[1] / 1e9:.2f} to {most[2] / 1e9:.2f} GHz"
    held = {
        word: max(one.limited.get(word, 0.0) for one in told)
        for word in LIMITS
        if any(word in one.limited for one in told)
    }
    if held:
        why += (
            f", held by {' and '.join(f'{word} ({format_share(share)} of the time)' for word, share in held.items())}"
        )
    most_slow = format_percent(max(slower.values()))
    named = few(labels[case_id] for case_id in sorted(slower, key=lambda one: -slower[one]))
    text = (
        f"under load a step takes up to {most_slow} longer than at the device's fastest ({named}){why}; times, "
        "speedups and verdicts are of what it keeps up"
    )
    return [Note(text)]


def _not_at_rest(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say which cases were timed before the device had come to rest."""
    shown = {row["case_id"] for row in rows}
    moving = dict.fromkeys(one.case_id for one in stored.rounds if one.steady is False and one.case_id in shown)
    if not moving:
        return []
    labels = _labels(stored)
    said = (
        "time or clock had not come to rest when warming up ended: times may be of a device that was still slowing down"
    )
    return [Note(f"{few(labels[one] for one in moving)}: {said}", warning=True)]


def _others_on_device(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Name the processes that had memory of an accelerator while it was measured."""
    shown = {row["case_id"] for row in rows}
    told = [one.telemetry for one in stored.rounds if one.case_id in shown and one.telemetry is not None]
    named = dict.fromkeys(process for one in told for process in one.processes)
    said = (
        "also used the accelerator while it was measured: times, and what fits into its memory, may be theirs in part"
    )
    return [Note(f"{few(named)} {said}", warning=True)] if named else []


def _state_on_host(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say for which cases what training puts back lay in the host's memory."""
    shown = {row["case_id"] for row in rows}
    moved = dict.fromkeys(one.case_id for one in stored.rounds if one.state_on_host and one.case_id in shown)
    if not moved:
        return []
    labels = _labels(stored)
    said = "the state that is put back between samples lay in the host's memory, as the device had no room for a copy"
    return [Note(f"{few(labels[one] for one in moved)}: {said}")]


def _graphs_left_aside(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say which compiled cases have launches that are in no graph, though their mode is to record them."""
    said = gathered(
        (
            _labels(stored)[row["case_id"]],
            f"torch.compile left graphs aside, and launches one by one: {'; '.join(reasons)}",
        )
        for row in rows
        if (found := stored.memory.get(row["case_id"])) is not None and (reasons := found.graphs_left_aside)
    )
    return [Note(line, warning=True) for line in said]


def _busy_untold(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say why it is not known for how long of a step an accelerator has work."""
    said = gathered(
        (_labels(stored)[row["case_id"]], f"whether launches bound it is not known: {found.busy_undefined}")
        for row in rows
        if (found := stored.memory.get(row["case_id"])) is not None and found.busy_undefined
    )
    return [Note(line) for line in said]


def _untold(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say why an accelerator told nothing, or not all, of its clock, power and temperature."""
    shown = {row["case_id"]: row["device"] for row in rows}
    reasons: dict[str, dict[str, None]] = {}
    for one in stored.rounds:
        if one.case_id in shown and one.telemetry is not None and one.telemetry.unavailable:
            reasons.setdefault(one.telemetry.unavailable, {})[shown[one.case_id]] = None
    said = "clock, power, temperature and other processes are not all known"
    return [Note(f"{few(devices)}: {said}: {reason}") for reason, devices in reasons.items()]


def _above_ceiling(stored: StoredRun, rows: Sequence[Row]) -> list[Note]:
    """Say which cases attain more than a measured ceiling, which is a fault in one of the two numbers."""
    shares = {row["case_id"]: number(row["ceiling_share"]) or 0.0 for row in rows}
    above = {case_id: share for case_id, share in shares.items() if share > CEILING_REACHED}
    if not above:
        return []
    labels = _labels(stored)
    attains = "attains" if len(above) == 1 else "attain up to"
    text = (
        f"{few(labels[case_id] for case_id in above)} {attains} {format_share(max(above.values()))} of the measured "
        "ceiling: a fault in the ceiling or in what was counted; measure the ceilings again: ampbench study ceilings"
    )
    return [Note(text, warning=True)]


def import_statement(imported: Imported, readings: bool) -> str:
    """Say which program measured and from which file its numbers are; `readings`: they are its own, without samples."""
    statement = f"imported from {imported.program}: {imported.file}"
    if not readings:
        return statement
    return f"{statement}; numbers without rounds are {imported.program}'s own (docs/convert.md)"


def measured_devices(rows: Iterable[Row]) -> list[str]:
    """Return the device types on which anything was measured, in order of appearance."""
    return list(dict.fromkeys(row["device"] for row in rows if row["outcome"] == "ok"))


def without_common_skips(groups: Mapping[Group, Sequence[Row]]) -> tuple[dict[Group, list[Row]], list[str]]:
    """Return the groups without the skips that are better said once, and a line for each of those.

    Said once are a reason that a precision was skipped for in more than one group, and groups skipped as a whole.
    """
    seen: dict[tuple[str, str], set[Group]] = {}
    for group, rows in groups.items():
        for row in rows:
            if row["outcome"] == "skipped":
                seen.setdefault((row["precision"], row["reason"]), set()).add(group)
    kept: dict[Group, list[Row]] = {}
    subjects: dict[str, dict[str, int]] = {}  # reason -> what was skipped for it -> cases
    for group, rows in groups.items():
        whole = all(row["outcome"] == "skipped" for row in rows)
        for row in rows:
            if row["outcome"] != "skipped" or not (whole or len(seen[row["precision"], row["reason"]]) > 1):
                kept.setdefault(group, []).append(row)
                continue
            everywhere = len(seen[row["precision"], row["reason"]]) == len(groups)
            name = precision_label(row)
            subject = name if everywhere or not whole else f"{group.workload} {group.phase} {group.path}"
            counts = subjects.setdefault(row["reason"], {})
            counts[subject] = counts.get(subject, 0) + 1
    return kept, [skip_note(reason, counts) for reason, counts in subjects.items()]


def sweep_remarks(
    advice: Mapping[Group, Advice], swept: Iterable[str], called: Callable[[str], str] = str
) -> list[str]:
    """Return a line for each swept parameter and table: the precision advised at each of its values.

    It answers where low precision begins to pay (`_pays_from`). `called` says what a parameter is called in it.
    """
    remarks = []
    for parameter in swept:
        tables: dict[str, list[tuple[str, Advice]]] = {}
        for group, advised in advice.items():
            value = swept_value(group, parameter)
            if value is not None:
                table = f"{group.workload} {group.phase} {group.path} on {group.device}"
                tables.setdefault(table, []).append((value, advised))
        for table, found in tables.items():
            values = ", ".join(f"{value} {advised.precision or 'no advice'}" for value, advised in found)
            remarks.append(f"by {called(parameter)}, {table}: {values}{_pays_from(found)}")
    return remarks


def _pays_from(found: Sequence[tuple[str, Advice]]) -> str:
    """Say from which value of a sweep on low precision pays, and why it does not at the one before.

    "" where that is not decided: values are no numbers or come twice, the advice on one that counts is uncertain or has
    no reason, or low precision pays at a value and not at a larger one.
    """
    try:
        by_number = {float(value): (value, advised) for value, advised in found}
    except ValueError:
        return ""
    ordered = [by_number[one] for one in sorted(by_number)]
    pays = [advised.precision not in (None, *TODAYS) for _, advised in ordered]
    first = pays.index(True) if any(pays) else len(ordered)
    counting = ordered[max(first - 1, 0) :] if any(pays) else ordered
    reasons = {value: advised.gains or advised.why for value, advised in counting}
    certain = all(one.precision and reasons[value] and not one.caveat and not one.few_rounds for value, one in counting)
    if len(found) < 2 or len(ordered) < len(found) or not all(pays[first:]) or not certain:
        return ""
    last = ordered[first - 1][0]  # that stays
    if first == len(ordered):
        return f"; low precision pays at none of them: at {last} {reasons[last]}"
    value, taken = ordered[first]
    gains = f"{taken.precision}: {reasons[value]}"
    if not first:
        return f"; low precision pays at each of them, at {value} already ({gains})"
    return f"; low precision pays from {value} on ({gains}), not at {last} ({reasons[last]})"


def swept_value(group: Group, parameter: str) -> str | None:
    """Return the value of `parameter` in `group`, None where its workload has none of that name."""
    if parameter == "batch_size":
        return None if group.batch_size is None else str(group.batch_size)
    settings = dict(pair.split("=", 1) for pair in group.parameters.split(",") if "=" in pair)
    return settings.get(parameter)


def skip_note(reason: str, counts: Mapping[str, int]) -> str:
    """Return what was skipped for one reason: `counts` of its cases by what they are called."""
    return f"{outcome_said('skipped', reason, few(counts, 4))} ({counted(sum(counts.values()), 'case')})"
