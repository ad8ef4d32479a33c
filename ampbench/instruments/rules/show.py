"""What probes of the rules say: the document of a run, of probes and of changes; disagreements, claims, traps.

Ops of which the same is to be said share a row, the last column names them; "aten::" is left out.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ampbench.core.precisions import SHORT_DTYPES
from ampbench.core.units import UNDEFINED, counted
from ampbench.instruments.rules.findings import (
    DISAGREEMENTS,
    compare_rules,
    find_disagreements,
    rank,
)
from ampbench.records.changes import Comparison
from ampbench.records.rules import (
    BANNED,
    CATEGORIES,
    CHANGED,
    DEVICE,
    DTYPES,
    FAKE,
    FLOAT32,
    LOWER,
    NOT_OBSERVED,
    PYTORCH_PAGE,
    REFUSED,
    UNLISTED,
    WIDEST,
    XPU_REFERENCE,
    RuleChange,
    RuleClaim,
    RuleObservation,
    RuleProbe,
    short_name,
)
from ampbench.records.run import Header
from ampbench.show.changes import rule_line, worded
from ampbench.show.data import record_data
from ampbench.show.document import Block, Document, Section
from ampbench.show.page import Held, Part, told_part
from ampbench.store import StoredRun

SOURCES = {XPU_REFERENCE: "XPU reference", PYTORCH_PAGE: "PyTorch page"}
"""What the documents are called in a table."""

MEANINGS = {
    LOWER: "cast to the autocast dtype",
    FLOAT32: "cast to float32",
    WIDEST: "cast to the widest of its floating inputs",
    UNLISTED: "left alone",
    BANNED: "refused with an error",
}
TRAPS = "behaviours"
"""The source of claims that are traps users told of, not statements of a document."""

_NOT_LEFT_ALONE = "not left alone"
_NOT_ELIGIBLE = "not eligible"
_HELD = {True: "yes", False: "no", None: "not tried"}
_YES = {True: "yes", False: "no", None: "–"}


WHAT_FOR = (
    "For when an op under autocast has a dtype, or raises an error, that you did not expect: where this torch does "
    "otherwise than its documents say. `ampbench explain rules --op NAME` tells of one op, --all of every one."
)
"""What begins the report of probes."""


def report(probes: Sequence[RuleProbe], everything: bool = False) -> list[Section]:
    """Return what `probes` of one torch say: what for, disagreements per device; with `everything` also all rules."""
    sections = [Section(title(probe), disagreements(probe)) for probe in probes]
    if sections:
        sections[0].blocks.insert(0, Block(WHAT_FOR))
    sections.append(
        Section(
            "All devices", list(filter(None, [counts(probes), *claims(probes), *traps(probes), *not_observed(probes)]))
        )
    )
    if everything:
        sections += [Section(f"Every op on {probe.device}", [rules(probe)]) for probe in probes]
    return sections


def told_by_op(probes: Sequence[RuleProbe]) -> list[Section]:
    """Return what `probes` cut down to some ops say of them: per device each op's rule, then what disagrees."""
    return [
        Section(title(probe), [rules(probe), *disagreements(probe), *not_observed([probe])])
        for probe in probes
        if probe.observations
    ]


def changes(pairs: Iterable[tuple[RuleProbe, RuleProbe]]) -> list[Section]:
    """Return what changed from the first to the second probe of each pair, both of one device type."""
    return [
        Section(
            _change_title(before, after), [_changed(compare_rules(before, after), {*before.dtypes} & {*after.dtypes})]
        )
        for before, after in pairs
    ]


def where_observed(probes: Iterable[RuleProbe]) -> str:
    """Return in words on which device types ops really ran, and which were stood in for by fake tensors."""
    devices: dict[str, list[str]] = {}
    for probe in probes:
        devices.setdefault(probe.how, []).append(probe.device)
    parts = []
    if DEVICE in devices:
        parts.append(f"{', '.join(devices[DEVICE])} observed on the device")
    if FAKE in devices:
        parts.append(f"{', '.join(devices[FAKE])} on fake tensors, not on hardware: this machine has none")
    return "; ".join(parts)


def disagreements(probe: RuleProbe) -> list[Block]:
    """Return a block for each kind of disagreement that there is, the most misleading kind first."""
    found = find_disagreements(probe)
    documents = _documents(probe.observations)
    said = {one.name: one.documented for one in probe.observations}
    blocks = []
    for kind, meaning in DISAGREEMENTS.items():
        rows: dict[tuple[str, ...], list[str]] = {}
        by_op: dict[tuple[str, str], list[str]] = {}
        facts: dict[tuple[str, str], tuple[str, ...]] = {}
        for one in found:
            if one.kind == kind:
                key = one.op, one.observed or "no such op"
                by_op.setdefault(key, []).append(one.source)
                facts[key] = _YES[one.registered], _word(key[1]), *_only(one.dtypes, probe.dtypes)
        for (op, observed), sources in by_op.items():
            if kind == _NOT_LEFT_ALONE:
                named = [_NOT_ELIGIBLE if source in sources else "–" for source in documents]
            else:
                named = [_word(said[op].get(source)) for source in documents]
            rows.setdefault((*named, *facts[op, observed]), []).append(op)
        if rows:
            headers = [*(SOURCES[source] for source in documents), "registered", "observed"]
            blocks.append(_grouped(kind, headers, rows, meaning))
    return blocks or [Block("Nothing disagrees.")]


def counts(probes: Sequence[RuleProbe]) -> Block:
    """Return how many ops each rule has, per device."""
    headers = ["observed", *(probe.device for probe in probes), "meaning"]
    rows = []
    for category in (*CATEGORIES, None):
        numbers = [len({one.name for one in probe.observations if one.observed == category}) for probe in probes]
        if any(numbers):
            meaning = "could not be tried" if category is None else MEANINGS[category]
            rows.append([_word(category or NOT_OBSERVED), *map(str, numbers), meaning])
    registered = [len({one.name for one in probe.observations if one.registered}) for probe in probes]
    total = [len({one.name for one in probe.observations}) for probe in probes]
    rows.append(["registered", *map(str, registered), "have an entry in the dispatcher's table"])
    rows.append(["all", *map(str, total), "have a rule on some device or in some document"])
    return Block("Ops by rule", headers, rows)


def claims(probes: Sequence[RuleProbe]) -> list[Block]:
    """Return the documents' other claims, and which of them hold in this torch."""
    rows = [
        [claim.device, SOURCES.get(claim.source, claim.source), _claimed(claim), _found(claim), _HELD[claim.holds]]
        for probe in probes
        for claim in probe.claims
        if claim.source != TRAPS
    ]
    headers = ["device", "document", "claim", "found", "holds"]
    return [Block("The documents' other claims", headers, rows)] if rows else []


def traps(probes: Sequence[RuleProbe]) -> list[Block]:
    """Return the traps that users told of, and what became of them in this torch."""
    known = [claim for probe in probes for claim in probe.claims if claim.source == TRAPS]
    tried = [[claim.device, claim.name, claim.said, _found(claim)] for claim in known if claim.how != NOT_OBSERVED]
    untried = dict.fromkeys(claim.device for claim in known if claim.how == NOT_OBSERVED)
    note = f"not tried on {', '.join(untried)}: that takes the device" if untried else ""
    return [Block("Traps", ["device", "trap", "reported", "found"], tried, note)] if known else []


def not_observed(probes: Sequence[RuleProbe]) -> list[Block]:
    """Return which ops could not be observed, and why."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for probe in probes:
        for name, dtypes in _merged(one for one in probe.observations if one.observed is None):
            reasons = {one.reason for one in probe.observations if one.name == name and one.observed is None}
            rows.setdefault((probe.device, "; ".join(sorted(reasons)), *_only(dtypes, probe.dtypes)), []).append(name)
    return [_grouped("Not observed", ["device", "reason"], rows)] if rows else []


def rules(probe: RuleProbe) -> Block:
    """Return the whole table of one device: a row per op, two where its rule depends on the autocast dtype."""
    documents = _documents(probe.observations)
    rows: dict[tuple[str, ...], list[str]] = {}
    for one in probe.observations:
        told = {told: [name for name, how in one.variants.items() if how == told] for told in (CHANGED, REFUSED)}
        calls = "; ".join(f"{', '.join(names)} {how}" for how, names in told.items() if names)
        named = [_word(one.documented.get(source)) for source in documents]
        row = (short_name(one.name), *named, _YES[one.registered], _word(one.observed or NOT_OBSERVED), calls)
        rows.setdefault(row, []).append(one.dtype)
    headers = ["op", *(SOURCES[source] for source in documents), "registered", "observed", "calls"]
    note = "calls: fp64 or integer inputs, in-place, out=, dtype=, where autocast does not leave them alone"
    headers, cells = _with_dtypes(headers, [[*row, *_only(dtypes, probe.dtypes)] for row, dtypes in rows.items()])
    return Block("", headers, cells, note)


def _changed(
    changes: Sequence[RuleChange], dtypes: Collection[str], title: str = "", *, devices: bool = False
) -> Block:
    """Return which rules changed between probes of `dtypes`, those of which the same is said in a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for one in changes:
        only = _only(one.dtypes, dtypes) if one.dtypes else ()
        of = [one.device] if devices else []
        rows.setdefault((*of, one.field, worded(one.before), worded(one.after), *only), []).append(one.op)
    headers = [*(["device"] if devices else []), "what", "before", "after"]
    return _grouped(title, headers, rows, ops="op or claim") if rows else Block("Nothing changed.")


def _grouped(
    title: str, headers: Sequence[str], rows: dict[tuple[str, ...], list[str]], note: str = "", ops: str = "ops"
) -> Block:
    """Return a block whose rows are the keys of `rows`, some with one cell more, the dtypes; then the ops."""
    with_dtypes, cells = _with_dtypes(headers, [list(key) for key in rows])
    named = [_listed(names) for names in rows.values()]
    return Block(title, [*with_dtypes, ops], [[*cell, name] for cell, name in zip(cells, named, strict=True)], note)


def _with_dtypes(headers: Sequence[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows with a column for the dtypes, if some row has one."""
    if all(len(row) == len(headers) for row in rows):
        return list(headers), rows
    return [*headers, "autocast to"], [row if len(row) > len(headers) else [*row, "any"] for row in rows]


def _listed(names: Sequence[str]) -> str:
    """Return names in a row; those of claims have commas of their own."""
    return ("; " if any("," in name for name in names) else ", ").join(map(short_name, names))


def _word(category: str | None) -> str:
    return "–" if category is None else worded(category)


def _documents(observations: Iterable[RuleObservation]) -> list[str]:
    """Return the documents that have lists for the device of `observations`."""
    known = {source for one in observations for source, category in one.documented.items() if category is not None}
    return [source for source in SOURCES if source in known]


def _only(dtypes: Sequence[str], all_dtypes: Collection[str]) -> tuple[str, ...]:
    """Return the dtypes in short, as a cell, unless they are all there are."""
    return () if set(dtypes) == set(all_dtypes) else (", ".join(SHORT_DTYPES.get(name, name) for name in dtypes),)


def _merged(observations: Iterable[RuleObservation]) -> Iterable[tuple[str, list[str]]]:
    by_name: dict[str, list[str]] = {}
    for one in observations:
        by_name.setdefault(one.name, []).append(one.dtype)
    return by_name.items()


def _claimed(claim: RuleClaim) -> str:
    return f"{claim.name}: {claim.said}" if claim.name == "default dtype" else claim.said


def _found(claim: RuleClaim) -> str:
    return f"{claim.found} ({FAKE})" if claim.how == FAKE else claim.found


def title(probe: RuleProbe) -> str:
    """Return what was probed, with what, and on what."""
    to = " and ".join(SHORT_DTYPES.get(dtype, dtype) for dtype in probe.dtypes)
    return f"{probe.device}: torch {probe.torch_version}, autocast to {to}, {_seen(probe)}"


def _change_title(before: RuleProbe, after: RuleProbe) -> str:
    seen = _seen(after) if before.how == after.how else f"{_seen(before)}, then {_seen(after)}"
    return f"{after.device}: torch {before.torch_version} to {after.torch_version}, {seen}"


def _seen(probe: RuleProbe) -> str:
    return {DEVICE: "observed on the device", FAKE: "observed on fake tensors, not on hardware"}.get(
        probe.how, NOT_OBSERVED
    )


VARIANTS = ("fp64", "integer", "in-place", "out=", "dtype=")
COLUMNS = (
    "op", "overload", "device", "dtype", "xpu_reference", "pytorch_page", "registered", "observed", "how", "reason",
    *VARIANTS, "disagreements",
)  # fmt: skip
"""Of an observation; variants of the call and the kinds of its disagreements at the end."""

CHANGE_COLUMNS = ("device", "field", "op", "dtypes", "before", "after")


def document(
    stored: StoredRun,
    case_ids: Sequence[str],  # noqa: ARG001 - as all documents
    *,
    everything: bool = False,
) -> Document:
    """Return what was probed in a run; it has no cases. `everything` lists every op for people, too."""
    return document_of_probes(stored.header, list(stored.of(RuleProbe).values()), everything=everything)


def document_of_probes(
    header: Header, probes: Sequence[RuleProbe], *, everything: bool = False, ops_first: bool = False
) -> Document:
    """Return `probes` of a run with this `header`, a flat row for each observation.

    `everything` lists every op for people too, as machines always have them; `ops_first` lists them before what
    disagrees and counts none, as for the few ops that someone asked for.
    """

    def data() -> dict[str, Any]:
        found = [
            record_data(probe) | {"disagreements": [asdict(one) for one in find_disagreements(probe)]}
            for probe in probes
        ]
        told = {"run": header.run, "note": where_observed(probes), "environment": record_data(header.environment)}
        return told | {"probes": found}

    return Document(
        sections=lambda: told_by_op(probes) if ops_first else report(probes, everything),
        data=data,
        columns=COLUMNS,
        rows=lambda: [dict(zip(COLUMNS, row, strict=True)) for probe in probes for row in _rows(probe)],
    )


def document_of_changes(pairs: Sequence[tuple[RuleProbe, RuleProbe]]) -> Document:
    """Return what changed between the two probes of each pair, a flat row for each change."""

    def data() -> list[dict[str, Any]]:
        return [
            {
                "device": after.device,
                "before": {"torch_version": before.torch_version, "how": before.how},
                "after": {"torch_version": after.torch_version, "how": after.how},
                "changes": [asdict(one) for one in compare_rules(before, after)],
            }
            for before, after in pairs
        ]

    def rows() -> list[dict[str, Any]]:
        found = [one for before, after in pairs for one in compare_rules(before, after)]
        values = ([one.device, one.field, one.op, " ".join(one.dtypes), one.before, one.after] for one in found)
        return [dict(zip(CHANGE_COLUMNS, row, strict=True)) for row in values]

    return Document(sections=lambda: changes(pairs), data=data, columns=CHANGE_COLUMNS, rows=rows)


def _rows(probe: RuleProbe) -> Iterable[list[object]]:
    """Return a probe's observations as rows of `COLUMNS`."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for found in find_disagreements(probe):
        for dtype in found.dtypes:
            known = kinds.setdefault((found.op, dtype), [])
            known += [] if found.kind in known else [found.kind]
    for one in probe.observations:
        documented = [one.documented.get(source) for source in SOURCES]
        variants = [one.variants.get(name) for name in VARIANTS]
        seen = [one.registered, one.observed, one.how, one.reason]
        named = "; ".join(kinds.get((one.name, one.dtype), []))
        yield [one.op, one.overload, one.device, one.dtype, *documented, *seen, *variants, named]


class OnPage(NamedTuple):
    """A probe, or two sides of a comparison: what it is called on a page, and what there is to say."""

    name: str
    section: Section


def part(held: Held[Any]) -> Part | None:
    """Return what changed between the baseline's rules and those of runs, and the probes of the runs, the oldest first.

    Of several probes of one torch version and device type, the newest counts.
    """
    newest = {(one.torch_version, one.device): one for run in held.runs for one in run.of(RuleProbe).values()}
    compared = [one for one in held.comparisons if one.rule_devices or one.rule_changes]
    return told_part(
        held,
        [*map(_compared, compared), *map(_probed, newest.values())],
        lambda one: one.section,
        id="rules",
        title="Autocast's rules",
        caption="Where documents, dispatcher and observation disagree, and what changed",
        first="rules",
        what="probes",
    )


def _compared(one: Comparison) -> OnPage:
    """Return how many rules changed from the baseline to the candidate, and which, those that alter results first."""
    versions = [side.torch_version or UNDEFINED for side in (one.baseline, one.candidate)]
    where = f"from torch {' to '.join(versions)} on {', '.join(one.rule_devices)}"
    where += f"; {', '.join(one.rule_devices_missing)} was not probed again" if one.rule_devices_missing else ""
    changes = sorted(one.rule_changes, key=lambda change: (not change.alters, rank(change)))
    altering = sum(change.alters for change in changes)
    if not changes:
        said = f"No rule of autocast changed {where}."
    elif not altering:
        said = f"{counted(len(changes), 'difference')} {where}; none changes what autocast does."
    else:
        verb = "changes" if altering == 1 else "change"
        said = (
            f"{counted(len(changes), 'difference')} {where}; {altering:,} of them {verb} what autocast does, such as "
        )
        said += f"{rule_line(changes[0])}."
    table = _changed(changes, DTYPES, "What changed between the baseline's rules and those of the run", devices=True)
    name = f"What changed in autocast's rules, torch {' → '.join(versions)}"
    return OnPage(name, Section(name, [Block(said), *([table] if changes else [])]))


def _probed(probe: RuleProbe) -> OnPage:
    counts = Counter(one.kind for one in find_disagreements(probe))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    said = f"{counted(counts.total(), 'disagreement')}{f' ({kinds})' if kinds else ''}."
    without = ", ".join(map(short_name, probe.without_sample))
    lines = [Block(f"There is no call to try these with: {without}.")] if without else []
    return OnPage(title(probe), Section(title(probe), [Block(said), *disagreements(probe), *lines]))
