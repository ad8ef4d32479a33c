"""Autocast's rules: disagreements between documents, registration and observation of an op, and changes.

A probe belongs to a device type; several probes belong to a torch. Changes from one torch to another come from two
probes of one device type.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ampbench.core import by_key
from ampbench.core.precisions import SHORT_DTYPES
from ampbench.core.statement import Statement, state
from ampbench.core.units import UNDEFINED
from ampbench.records.case import DEVICES
from ampbench.records.kinds import RULES
from ampbench.records.rules import (
    BANNED,
    CHANGED,
    DTYPES,
    FAKE,
    FLOAT32,
    INSIDE,
    LOWER,
    NOT_OBSERVED,
    NOT_THERE,
    PYTORCH_PAGE,
    REFUSED,
    UNLISTED,
    WIDEST,
    XPU_REFERENCE,
    RuleChange,
    RuleObservation,
    RuleProbe,
    short_name,
    worded,
)
from ampbench.records.wire import Nothing, Task
from ampbench.show.document import Column
from ampbench.studies.study import ANY_DEVICE, OnDevices, Study, Table, Torch, info, torches

if TYPE_CHECKING:
    from ampbench.store import StoredRun

DISAGREEMENTS = {
    "contradicted": "the document names one rule, another is observed",
    "not applied": "the document names a rule, none is observed",
    "documents differ": "two documents name different rules",
    "no effect": "a rule is registered, none is observed",
    "undocumented": "a rule is registered and observed, the document does not name the op",
    "not left alone": "autocast changes or refuses a call that documents exempt from it",
    "depends on dtype": "autocast to fp16 and to bf16 do different things",
    "promotes by itself": "the document names the widest rule, the op does as much without one",
    "gone": "the document names an op that this torch does not have",
    "inherited": "no rule is registered and none documented, but an op inside has one",
}
"""Kinds of disagreement, the most misleading for a user first."""
SOURCES = {XPU_REFERENCE: "XPU reference", PYTORCH_PAGE: "PyTorch page"}
"""The documents and their names in a table."""
EXEMPT = {
    XPU_REFERENCE: ("fp64", "integer", "in-place", "out="),
    PYTORCH_PAGE: ("fp64", "integer", "in-place", "out=", "dtype="),
}
"""What each document calls not eligible (`not_eligible` in its data file), as variants of an observation."""
HAVING_RULES = (LOWER, INSIDE, FLOAT32, WIDEST, BANNED)
VARIANTS = ("fp64", "integer", "in-place", "out=", "dtype=")
NO_SUCH_OP = "no such op"
FIELDS = ("observed", "registered", "variant", "op", "documented")
"""The order in which changes are listed."""


class RulesCode(StrEnum):
    """What probes of a torch say of a device."""

    DISAGREE = "rules-disagree"
    NOT_PROBED = "rules-not-probed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Answers about an op under autocast to a dtype that differ; `kind` is a key of `DISAGREEMENTS`.

    `documented` is the rule of each of `SOURCES`, or that a call is not eligible (None: nothing).
    """

    kind: str
    op: str
    device: str
    dtype: str
    documented: tuple[str | None, ...]
    registered: bool | None
    observed: str


def find_disagreements(probe: RuleProbe) -> list[Disagreement]:
    """Return a probe's disagreements in the order of `DISAGREEMENTS`, public ops before internal ones, then by name."""
    by_op = by_key(probe.observations, attrgetter("name"))
    rules = {name: {op.observed for op in ops} - {None} for name, ops in by_op.items()}
    rows = [disagreement for op in probe.observations for disagreement in _disagreements(op, rules[op.name])]
    kinds = list(DISAGREEMENTS)
    return sorted(rows, key=lambda row: (kinds.index(row.kind), "::_" in row.op, row.op))


def _disagreements(op: RuleObservation, in_any_dtype: set[str | None]) -> Iterator[Disagreement]:
    documented = tuple(map(op.documented.get, SOURCES))
    rules = {category for category in documented if category in HAVING_RULES}
    kinds = dict.fromkeys((_against(op, category) for category in documented), True) | {
        "documents differ": len(rules) > 1,
        "no effect": op.registered and op.observed == UNLISTED,
        "inherited": op.registered is False and op.observed in HAVING_RULES and not rules,
        "depends on dtype": op.observed is not None and len(in_any_dtype) > 1,
    }
    disagreement = partial(Disagreement, op=op.name, device=op.device, dtype=op.dtype, registered=op.registered)
    for kind, holds in kinds.items():
        if kind and holds:
            yield disagreement(kind=kind, documented=documented, observed=op.observed or NO_SUCH_OP)
    for variant, outcome in op.variants.items() if op.registered else ():
        exempt = tuple(
            "not eligible" if op.documented.get(source) and variant in EXEMPT[source] else None for source in SOURCES
        )
        if outcome in (CHANGED, REFUSED) and any(exempt):
            yield disagreement(kind="not left alone", documented=exempt, observed=f"{variant} {outcome}")


def _against(op: RuleObservation, category: str | None) -> str:
    """Return how a document's `category` disagrees with the observation, "" where it agrees."""
    if op.observed is None:
        return "gone" if category in HAVING_RULES and not is_there(op) else ""
    mixed = op.trials.get("mixed")
    promotes = mixed is not None and mixed.plain.error is None and set(mixed.plain.outputs) == {"float32"}
    if category == WIDEST and op.observed == UNLISTED and promotes:
        return "promotes by itself"
    if category in HAVING_RULES and op.observed != category:
        return "contradicted" if op.observed in HAVING_RULES else "not applied"
    undocumented = category == UNLISTED and op.observed in HAVING_RULES and op.registered
    return "undocumented" if undocumented else ""


def is_there(op: RuleObservation | None) -> bool:
    """Return whether an op exists: it has been tried, or it is registered."""
    return op is not None and bool(op.trials or op.registered)


def compare_rules(before: RuleProbe, after: RuleProbe) -> list[RuleChange]:
    """Return the changes of each op and variant that two probes of the same device type observed.

    An op that came or went counts where it has a rule.
    """
    return [change for change in _changes(before, after) if change.after != NOT_OBSERVED]


def unobserved(before: RuleProbe, after: RuleProbe) -> list[RuleChange]:
    """Return the ops that the first probe observed and the second, which knows them, could not; no rule changed."""
    return [change for change in _changes(before, after) if change.after == NOT_OBSERVED]


def rank(change: RuleChange) -> tuple[int, str, str, str]:
    """Return the sort key of changes: their field in the order of `FIELDS`, then the op and the device."""
    return FIELDS.index(change.field.split()[0]), change.op, change.field, change.device


def _changes(before: RuleProbe, after: RuleProbe) -> list[RuleChange]:
    """Return the differences of each op between two probes, once for all dtypes with the same difference."""
    old = {(row.name, row.dtype): row for row in before.observations}
    new = {(row.name, row.dtype): row for row in after.observations}
    both = [dtype for dtype in before.dtypes if dtype in after.dtypes]
    differing = [
        ((name, *difference), dtype)
        for name in {name for name, _ in (*old, *new)}
        for dtype in both
        for difference in _differences(old.get((name, dtype)), new.get((name, dtype)))
    ]
    changes = [
        RuleChange(
            op=name, device=after.device, dtypes=[dtype for _, dtype in same], field=field, before=was, after=now
        )
        for (name, field, was, now), same in by_key(differing, itemgetter(0)).items()
    ]
    return sorted(changes, key=rank)


def _differences(old: RuleObservation | None, new: RuleObservation | None) -> Iterator[tuple[str, str, str]]:
    if old is None or new is None or not is_there(old) or not is_there(new):
        if any(row and is_there(row) and (row.registered or row.observed in HAVING_RULES) for row in (old, new)):
            yield "op", _presence(old), _presence(new)
        return
    if old.observed is not None and old.observed != new.observed:
        yield "observed", old.observed, new.observed or NOT_OBSERVED
    if None not in (old.registered, new.registered) and old.registered != new.registered:
        yield "registered", _yes(old.registered), _yes(new.registered)
    pairs: list[tuple[str, Mapping[str, str | None], Mapping[str, str | None]]]
    pairs = [("documented by", old.documented, new.documented)]
    if old.observed == new.observed:
        pairs.insert(0, ("variant", old.variants, new.variants))
    for kind, was, now in pairs:
        for name in sorted(was.keys() & now.keys()):
            if was[name] != now[name]:
                yield f"{kind} {name}", str(was[name]), str(now[name])


def _presence(op: RuleObservation | None) -> str:
    """Return "not there", or "there" with its rule."""
    return f"there, {op.observed or NOT_OBSERVED}" if op is not None and is_there(op) else NOT_THERE


def _yes(registered: bool | None) -> str:
    return UNDEFINED if registered is None else "yes" if registered else "no"


def _word(category: str | None) -> str:
    return UNDEFINED if category is None else worded(category)


def conclusions(_: None, torch: Torch[RuleProbe]) -> Iterator[Statement]:
    """Yield the number of ops with disagreements on each device, by kind."""
    for probe in torch.results:
        device = f"{probe.device} ({FAKE})" if probe.how == FAKE else probe.device
        if probe.error:
            yield state(RulesCode.NOT_PROBED, device, error=probe.error)
            continue
        pairs = {(row.kind, row.op) for row in find_disagreements(probe)}
        kinds = Counter(kind for kind, _ in pairs)
        counts = ", ".join(f"{kind} {kinds[kind]:,}" for kind in DISAGREEMENTS if kind in kinds)
        ops = {observation.name for observation in probe.observations}
        number = len({op for _, op in pairs})
        yield info(RulesCode.DISAGREE, device, ops=len(ops), number=number, kinds=counts or None)


class Alike(NamedTuple):
    """Ops with equal `words`: on `devices`, under autocast to `dtypes` ("": any)."""

    words: Sequence[str]
    ops: Sequence[str]
    devices: Sequence[str]
    dtypes: str


def alike(sources: Iterable[tuple[str, str, Sequence[str], tuple[str, ...]]]) -> list[Alike]:
    """Join entries with the same words: each has an op, a device, dtypes and the words."""
    rows = []
    for (op, device, words), same in by_key(sources, itemgetter(0, 1, 3)).items():
        dtypes = [dtype for _, _, names, _ in same for dtype in names]
        only = "" if len(dtypes) in (0, len(DTYPES)) else " ".join(SHORT_DTYPES[dtype] for dtype in dtypes)
        rows.append((op, device, words, only))
    of_op = [
        (short_name(op), tuple(device for _, device, _, _ in same), words, only)
        for (op, words, only), same in by_key(rows, itemgetter(0, 2, 3)).items()
    ]
    return [
        Alike(words, [op for op, *_ in same], devices, only)
        for (devices, words, only), same in by_key(of_op, itemgetter(1, 2, 3)).items()
    ]


def disagreements(torch: Torch[RuleProbe]) -> list[Disagreement]:
    """Return the disagreements of all devices."""
    return [row for probe in torch.results for row in find_disagreements(probe)]


def _in_documents(documented: Sequence[str | None]) -> str:
    """Return the rule of an op in documents, in a word, or a word for each document where these differ."""
    words = {document: _word(word) for document, word in zip(SOURCES.values(), documented, strict=True) if word}
    if len(set(words.values())) > 1:
        return ", ".join(f"{word} ({document})" for document, word in words.items())
    return next(iter(words.values()), UNDEFINED)


def every_op(torch: Torch[RuleProbe]) -> list[Alike]:
    """Return the facts of each op by name, equal ones of several devices together."""
    sources = []
    for op in (op for probe in torch.results for op in probe.observations):
        calls = [f"{name} {outcome}" for name, outcome in op.variants.items() if outcome in (CHANGED, REFUSED)]
        observed = worded(op.observed) if op.observed else f"{NOT_OBSERVED}: {op.reason}"
        documented = map(_word, map(op.documented.get, SOURCES))
        words = short_name(op.name), *documented, _yes(op.registered), observed, ", ".join(calls)
        sources.append((op.name, op.device, [op.dtype], words))
    return sorted(alike(sources), key=lambda row: row.words[0])


_OF_OP = ("op", "overload", "device", "dtype", "registered", "observed", "how", "reason")


def observed(torch: Torch[RuleProbe]) -> list[dict[str, Any]]:
    """Return every op on every device under autocast to each dtype."""
    kinds = by_key(disagreements(torch), attrgetter("device", "dtype", "op"))
    return [
        {name: getattr(op, name) for name in _OF_OP}
        | {source: op.documented.get(source) for source in SOURCES}
        | {variant: op.variants.get(variant) for variant in VARIANTS}
        | {"disagreements": "; ".join(dict.fromkeys(row.kind for row in kinds.get((op.device, op.dtype, op.name), ())))}
        for probe in torch.results
        for op in probe.observations
    ]


OBSERVED: Sequence[Column[Mapping[str, Any]]] = [
    Column(name, itemgetter(name)) for name in (*_OF_OP[:4], *SOURCES, *_OF_OP[4:], *VARIANTS, "disagreements")
]


def _word_of(place: int, head: str, *, rare: bool = False) -> Column[Alike]:
    """Return the column of one of the words."""
    return Column("", lambda row: row.words[place], head, rare=rare)


ON: Column[Alike] = Column("", lambda row: ", ".join(row.devices), "on")
TO: Column[Alike] = Column("", lambda row: row.dtypes, "autocast to", rare=True)
OPS: Column[Alike] = Column("", lambda row: ", ".join(row.ops), "ops")
SAID = (_word_of(1, SOURCES[XPU_REFERENCE], rare=True), _word_of(2, SOURCES[PYTORCH_PAGE]))
EVERY_OP = (
    _word_of(0, "op"), ON, *SAID, _word_of(3, "registered"), _word_of(4, "observed"), _word_of(5, "calls", rare=True),
    TO,
)  # fmt: skip


def probed_twice(before: "StoredRun", after: "StoredRun") -> list[tuple[RuleProbe, RuleProbe]]:
    """Return both probes of each device type that two runs probed."""
    later = after.of(RuleProbe)
    pairs = [(old, later[device]) for device, old in before.of(RuleProbe).items() if device in later]
    return [(old, new) for old, new in pairs if not (old.error or new.error)]


TASK = Task(RULES, Nothing, RuleProbe, "ampbench.studies.devices_measure:do_rules")


STUDY: Study[Nothing, Torch[RuleProbe]] = Study(
    kind=RULES,
    help="""\
Run each op that has an autocast rule, and hold what happens to what documents say; stored like any run.

For when an op under autocast has a dtype, or raises an error, that you did not expect. A device that is not here is
stood in for by fake tensors: the rules are seen, no hardware is.

\b
Examples:
  ampbench explain rules
  ampbench explain rules --device xpu --all | grep softmax    rules of one op
""",
    doing="probing",
    asked=Nothing,
    task=TASK,
    # tiny tensors: more threads would wait for each other
    on_devices=OnDevices(request=lambda *_: Nothing(), threads=1, help=ANY_DEVICE),
    parts=lambda where, *_: [
        RuleProbe(device=device, dtypes=[]) for device in dict.fromkeys(where.selection.devices or DEVICES)
    ],
    apart=("device",),
    failed=lambda probe: bool(probe.error),
    title="Autocast's rules",
    key="probes",
    subject="torch",
    subjects=lambda runs, _: torches(runs, lambda run: run.of(RuleProbe)),
    conclusions=conclusions,
    tables=(
        Table("ops", OBSERVED, observed),
        Table(
            "", (ON, OPS, _word_of(0, "disagreement"), _word_of(1, "documented"), _word_of(2, "observed"), TO),
            lambda torch: alike(
                (row.op, row.device, [row.dtype], (row.kind, _in_documents(row.documented), worded(row.observed)))
                for row in disagreements(torch)
            ),
            "Disagreements",
        ),
        Table(
            "", (Column("", itemgetter(0), "disagreement"), Column("", itemgetter(1), "meaning")),
            lambda torch: [
                (kind, DISAGREEMENTS[kind])
                for kind in DISAGREEMENTS if kind in {row.kind for row in disagreements(torch)}
            ],
            "Kinds of disagreement", folded=True,
        ),
        Table(
            "", EVERY_OP, every_op, "Every op",
            "calls: those with fp64, integers, in-place, out= or dtype= that autocast changes or refuses", folded=True,
        ),
    ),
)  # fmt: skip
