"""Which precision to take on which machine, in words, and what that brings."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ampbench.labels import few
from ampbench.precisions import BASELINE, DEFAULT
from ampbench.report.machines import Machine, Table
from ampbench.report.summaries import spread
from ampbench.rows import Row, judged_error, number, precision_label, times
from ampbench.soundness import AGAINST_FP32
from ampbench.units import every, format_error

NO_ADVICE = "no advice"
UNCERTAIN = "not certain: "
"""How every caveat of advice begins."""
REASONS = 3
TODAYS = (BASELINE, DEFAULT)
"""What one stays in."""
"""So many reasons for which there is no advice are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to take on a machine, and what each precision `gains` there.

    Of a single machine, `where` and `said` are "": the heading says it.
    """

    where: str
    said: str
    gains: Sequence[str]


def heading(found: Sequence[Machine]) -> str:
    """Return in one line which precision to take on the machines on which anything was measured."""
    known = [machine for machine in found if machine.advised]
    if len(known) == 1:
        return f"on {known[0].name}: {answer(known)}"
    torches = {one.runs[-1].stored.header.environment.torch_version for one in known}
    where = "devices" if len(torches) == 1 else "devices or torch versions"
    return f"on {len(known)} {where}: {answer(known)}"


def answers(found: Sequence[Machine], allowed: float) -> list[Answer]:
    """Return the answer for each machine on which anything was measured; `allowed` is the largest output error."""
    known = [machine for machine in found if machine.advised]
    gains = [_gains(one.advised, allowed) for one in known]
    if len(known) == 1:
        return [Answer(where="", said="", gains=gains[0])]
    return [Answer(where=one.title, said=answer([one]), gains=said) for one, said in zip(known, gains, strict=True)]


def taken(tables: Sequence[Table]) -> Counter[str]:
    """Return for how many of `tables`, all of which have advice, each precision is to be taken, or `NO_ADVICE`."""
    return Counter(NO_ADVICE if one.chosen is None else precision_label(one.chosen) for one in tables)


def answer(found: Sequence[Machine]) -> str:
    """Return which precision to take for how many of the tables of machines that have advice."""
    tables = [table for machine in found for table in machine.advised]
    if not any(row["outcome"] == "ok" and row["precision"] != BASELINE for table in tables for row in table.whole):
        return "only fp32 was measured: there is nothing to choose from"
    counts = taken(tables)
    ranked = sorted(counts, key=lambda label: (label == NO_ADVICE, label in TODAYS, -counts[label]))
    caveats = [table.advice.caveat for table in tables if table.advice]
    whole = _qualified(caveats) if len(set(caveats)) == 1 else ""
    phrases = []
    for place, label in enumerate(ranked):
        count = f"{counts[label]:,}" if place else f"{counts[label]:,} of {len(tables):,} {_nouns(found)}"
        if len(ranked) == 1:
            count = tables[0].label if len(tables) == 1 else f"{every(len(tables))} {_nouns(found)}"
        verb = label if place or label == NO_ADVICE else f"take {label}"
        own = [one.advice.caveat for one in tables if one.advice and taken([one])[label]]
        uncertain = "" if whole else _qualified(own, brief=True)
        phrases.append(f"{f'stay in {label}' if label in TODAYS else verb} for {count}{uncertain}")
    return ", ".join(phrases) + whole


_TRAITS: Mapping[str, Callable[[Table], object]] = MappingProxyType(
    {
        "phases": lambda table: table.group.phase,
        "settings": lambda table: (
            table.group.path,
            table.group.parameters,
            table.group.batch_size,
            table.group.memory_format,
        ),
        "runs": lambda table: table.shown.name,
    }
)
"""What else than its workload may tell a table from others of its machine."""


def _nouns(found: Sequence[Machine]) -> str:
    """Return what tells the tables apart: "workloads and phases"."""
    tables = [(place, table) for place, machine in enumerate(found) for table in machine.advised]
    nouns = ["workloads"]
    keys: list[tuple[object, ...]] = [(place, table.group.workload) for place, table in tables]
    for noun, trait in _TRAITS.items():
        values = [trait(table) for _, table in tables]
        if len(set(keys)) < len(keys) and len(set(values)) > 1:
            nouns.append(noun)
            keys = [(*key, value) for key, value in zip(keys, values, strict=True)]
    nouns += ["devices"] if len(found) > 1 else []
    return " and ".join([", ".join(nouns[:-1]), nouns[-1]] if len(nouns) > 1 else nouns)


def _qualified(caveats: Sequence[str], brief: bool = False) -> str:
    """Return in brackets what makes advice uncertain, and of how much of it; "" where nothing does.

    If `brief`, a reason is given only where it is the same for all of it.
    """
    counts = Counter(one for one in caveats if one)
    if not counts:
        return ""
    if len(counts) == 1 and counts.total() == len(caveats):
        return f" ({next(iter(counts))})"
    uncertain = f"{counts.total():,} of {len(caveats):,}" if counts.total() < len(caveats) else ""
    if not brief:
        reasons = "; ".join(reason.removeprefix(UNCERTAIN) for reason in counts)
        return f" ({' '.join(filter(None, [uncertain, f'{UNCERTAIN}{reasons}']))})"
    return f" ({' '.join(filter(None, [uncertain, UNCERTAIN.removesuffix(': ')]))})"


def _withheld(tables: Sequence[Table]) -> list[str]:
    """Return for which tables there is no advice and why, by reason, the commonest ones."""
    reasons: dict[str, list[str]] = {}
    for table in tables:
        if table.advice is not None and table.chosen is None:
            reasons.setdefault(table.advice.sentence, []).append(table.label)
    ranked = sorted(reasons.items(), key=lambda each: -len(each[1]))
    said = [f"{few(labels)}: {sentence}" for sentence, labels in ranked[:REASONS]]
    more = sum(len(labels) for _, labels in ranked[REASONS:])
    return [*said, *([f"no advice for {more:,} more, with the reasons in the table of advice"] if more else [])]


def _gains(tables: Sequence[Table], allowed: float) -> list[str]:
    """Return what each precision advised brings where it is advised, what makes that uncertain, and what has none."""
    rows: dict[str, list[tuple[Row, str]]] = {}
    caveats: dict[str, list[str]] = {}
    for table in tables:
        chosen = table.chosen
        if chosen is not None and table.advice is not None:
            caveats.setdefault(precision_label(chosen), []).append(table.advice.caveat)
            if chosen["precision"] not in TODAYS:
                rows.setdefault(precision_label(chosen), []).append((chosen, table.label))
    said = []
    for label, chosen_rows in rows.items():
        speed, memory = (
            spread((number(row[column]), name) for row, name in chosen_rows)
            for column in ("speedup_vs_fp32", "memory_ratio_vs_fp32")
        )
        error = spread((judged_error(row), name) for row, name in chosen_rows)
        parts = []
        if speed is not None and speed.mean is not None:
            ends = f" in geometric mean ({times(speed.least[0])} to {times(speed.most[0])})" if speed.count > 1 else ""
            parts.append(f"{times(speed.mean)} the speed of fp32{ends}")
        if memory is not None and memory.mean is not None and times(memory.mean) != times(1):
            parts.append(f"{times(memory.mean)} the memory")
        if error is not None:
            against = any(row["reference_dtype"] == BASELINE for row, _ in chosen_rows)
            note = f" ({AGAINST_FP32})" if against else ""
            parts.append(f"an output error of at most {format_error(error.most[0])}{note} of {allowed:g} allowed")
        if parts:
            said.append(f"{label}, where it is advised: {', '.join(parts)}{_qualified(caveats[label])}")
    for name in TODAYS:
        own = caveats.get(name, [])
        if len(set(own)) > 1:  # the heading has a reason that is the same for all
            said.append(f"{name} is advised for {len(own):,}{_qualified(own)}")
    return [*said, *_withheld(tables)]
