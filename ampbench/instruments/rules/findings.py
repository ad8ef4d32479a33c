"""Where documents, dispatcher and observation disagree about autocast's rules, and what changed from probe to probe.

Pure functions on records.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from msgspec import structs

from ampbench.core.precisions import SHORT_DTYPES
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import DEVICES
from ampbench.records.rules import (
    BANNED,
    CHANGED,
    DTYPES,
    FLOAT32,
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
)

DISAGREEMENTS = {
    "contradicted": "the document names one rule, another is observed",
    "not applied": "the document names a rule, none is observed",
    "documents differ": "two documents name different rules",
    "no effect": "a rule is registered, none is observed",
    "undocumented": "a rule is registered and observed, the document does not name the op",
    "not left alone": "a call that documents exempt from autocast is changed or refused by it",
    "depends on dtype": "autocast to fp16 and to bf16 do different things",
    "promotes by itself": "the document names the widest rule, the op does as much without one",
    "gone": "the document names an op that this torch does not have",
    "inherited": "no rule is registered and none documented, but an op inside has one",
}
"""Kinds of disagreement, the most misleading for a user first."""

RULES = (LOWER, FLOAT32, WIDEST, BANNED)
EXEMPT = {
    XPU_REFERENCE: ("fp64", "integer", "in-place", "out="),
    PYTORCH_PAGE: ("fp64", "integer", "in-place", "out=", "dtype="),
}
"""What each document calls not eligible (`not_eligible` in its data file), as variants of an observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDisagreement:
    """Two answers about one op that differ; `kind` is a key of `DISAGREEMENTS`.

    `dtypes` are the autocast dtypes it was seen with; `source` is the document concerned, "" where none is.
    """

    kind: str
    op: str
    device: str
    dtypes: list[str]
    source: str = ""
    documented: str | None = None
    observed: str | None = None
    registered: bool | None = None
    how: str = ""


def find_disagreements(probe: RuleProbe) -> list[RuleDisagreement]:
    """Return a probe's disagreements in the order of `DISAGREEMENTS`, public ops before internal ones, then by name.

    The same disagreement in several autocast dtypes is one, with several `dtypes`.
    """
    merged: dict[tuple[object, ...], RuleDisagreement] = {}
    for found in (*_in_each(probe.observations), *_across_dtypes(probe.observations)):
        key = (found.kind, found.op, found.device, found.source, found.documented, found.observed, found.how)
        known = merged.get(key)
        merged[key] = found if known is None else _joined(known, found)
    rank = list(DISAGREEMENTS)
    return sorted(
        merged.values(), key=lambda one: (rank.index(one.kind), "::_" in one.op, one.op, one.source, one.dtypes)
    )


def is_there(one: RuleObservation | None) -> bool:
    """Return whether the op exists: it has been tried, or it is registered."""
    return one is not None and bool(one.trials or one.registered)


def _in_each(observations: Iterable[RuleObservation]) -> Iterator[RuleDisagreement]:
    for one in observations:
        named = {source: category for source, category in one.documented.items() if category in RULES}
        for source, category in one.documented.items():
            kind = _against(one, category)
            if kind is not None:
                yield _disagreement(kind, one, source, category)
            for variant, told in one.variants.items():
                if told in (CHANGED, REFUSED) and one.registered and variant in EXEMPT.get(source, ()):
                    said = f"{variant} is not eligible"
                    yield _disagreement("not left alone", one, source, said, f"{variant} {told}")
        if len(set(named.values())) > 1:
            yield _disagreement("documents differ", one, ", ".join(named), ", ".join(str(v) for v in named.values()))
        if one.registered and one.observed == UNLISTED:
            yield _disagreement("no effect", one, "", None)
        if one.registered is False and one.observed in RULES and not named:
            yield _disagreement("inherited", one, "", None)


def _against(one: RuleObservation, category: str | None) -> str | None:
    """Return how one document's `category` disagrees with what is observed, None where it does not."""
    if one.observed is None:
        return "gone" if category in RULES and not is_there(one) else None
    if category == WIDEST and one.observed == UNLISTED and _promotes(one):
        return "promotes by itself"
    if category in RULES and one.observed != category:
        return "contradicted" if one.observed in RULES else "not applied"
    if category == UNLISTED and one.observed in RULES and one.registered:
        return "undocumented"
    return None


def _promotes(one: RuleObservation) -> bool:
    """Tell whether mixed inputs give fp32 without any help of autocast."""
    mixed = one.trials.get("mixed")
    return mixed is not None and mixed.plain.error is None and set(mixed.plain.outputs) == {"float32"}


def _across_dtypes(observations: Iterable[RuleObservation]) -> Iterator[RuleDisagreement]:
    by_op: dict[tuple[str, str], list[RuleObservation]] = {}
    for one in observations:
        if one.observed is not None:
            by_op.setdefault((one.name, one.device), []).append(one)
    for together in by_op.values():
        if len({one.observed for one in together}) > 1:
            for one in together:
                yield _disagreement("depends on dtype", one, "", None)


def _disagreement(
    kind: str, one: RuleObservation, source: str, documented: str | None, observed: str | None = None
) -> RuleDisagreement:
    return RuleDisagreement(
        kind=kind,
        op=one.name,
        device=one.device,
        dtypes=[one.dtype],
        source=source,
        documented=documented,
        observed=observed or one.observed,
        registered=one.registered,
        how=one.how,
    )


def _joined(known: RuleDisagreement, found: RuleDisagreement) -> RuleDisagreement:
    return replace(known, dtypes=list(dict.fromkeys([*known.dtypes, *found.dtypes])))


FIELDS = ("observed", "registered", "variant", "claim", "op", "documented")
"""The order in which changes are listed."""


def compare_rules(before: RuleProbe, after: RuleProbe) -> list[RuleChange]:
    """Return what changed for each op, variant and claim from one probe to another of the same device type.

    What either could not observe is not compared (`unobserved` tells it); an op that came or went counts where it has a
    rule. Ordered by `FIELDS`, then by name. `ValueError` for two devices.
    """
    if before.device != after.device:
        raise ValueError(f"probes of {before.device} and of {after.device} are not two of one device")
    merged: dict[tuple[str, ...], RuleChange] = {}
    for name, dtype, old, new in _paired(before, after):
        for field, was, now in _differences(old, new):
            _merge(merged, after.device, name, dtype, field, was, now)
    return sorted([*merged.values(), *_claim_changes(before, after)], key=rank)


def unobserved(before: RuleProbe, after: RuleProbe) -> list[RuleChange]:
    """Return the ops that the first probe observed and the second, which knows them, could not; no rule changed."""
    merged: dict[tuple[str, ...], RuleChange] = {}
    for name, dtype, old, new in _paired(before, after):
        if old is not None and old.observed is not None and new is not None and is_there(new) and new.observed is None:
            _merge(merged, after.device, name, dtype, "observed", old.observed, NOT_OBSERVED)
    return sorted(merged.values(), key=rank)


def missing_dtypes(before: RuleProbe, after: RuleProbe) -> str:
    """Return "cuda to fp16", the autocast dtypes that only the first of two probes of a device tried; "" for none."""
    missing = [SHORT_DTYPES.get(dtype, dtype) for dtype in before.dtypes if dtype not in after.dtypes]
    return f"{before.device} to {' and '.join(missing)}" if missing else ""


def rank(change: RuleChange) -> tuple[int, str, str, str]:
    """Return what changes are sorted by: their field in the order of `FIELDS`, then the op and the device."""
    return FIELDS.index(change.field.split()[0]), change.op, change.field, change.device


def _paired(
    before: RuleProbe, after: RuleProbe
) -> Iterator[tuple[str, str, RuleObservation | None, RuleObservation | None]]:
    """Yield each op's name with each common dtype and what the two probes have of it."""
    old = {(one.name, one.dtype): one for one in before.observations}
    new = {(one.name, one.dtype): one for one in after.observations}
    dtypes = [dtype for dtype in before.dtypes if dtype in after.dtypes]
    for name in sorted({name for name, _ in (*old, *new)}):
        for dtype in dtypes:
            yield name, dtype, old.get((name, dtype)), new.get((name, dtype))


def _merge(
    merged: dict[tuple[str, ...], RuleChange], device: str, name: str, dtype: str, field: str, was: str, now: str
) -> None:
    """Add a change of one dtype to those that are the same in others."""
    key = (name, field, was, now)
    known = merged[key].dtypes if key in merged else []
    merged[key] = RuleChange(op=name, device=device, dtypes=[*known, dtype], field=field, before=was, after=now)


def _differences(old: RuleObservation | None, new: RuleObservation | None) -> Iterator[tuple[str, str, str]]:
    if not is_there(old) or not is_there(new):
        if any(_has_rule(one) for one in (old, new)):
            yield "op", _presence(old), _presence(new)
        return
    assert old is not None
    assert new is not None
    if old.observed is not None and new.observed is not None and old.observed != new.observed:
        yield "observed", old.observed, new.observed
    if old.registered is not None and new.registered is not None and old.registered != new.registered:
        yield "registered", _yes_no(old.registered), _yes_no(new.registered)
    for variant in sorted(old.variants.keys() & new.variants.keys()):
        if old.observed == new.observed and old.variants[variant] != new.variants[variant]:
            yield f"variant {variant}", old.variants[variant], new.variants[variant]
    for source in sorted(old.documented.keys() & new.documented.keys()):
        if old.documented[source] != new.documented[source]:
            yield f"documented by {source}", str(old.documented[source]), str(new.documented[source])


def _has_rule(one: RuleObservation | None) -> bool:
    return one is not None and is_there(one) and (bool(one.registered) or one.observed in RULES)


def _presence(one: RuleObservation | None) -> str:
    """Return "not there", or "there" with what is known of its rule."""
    if one is None or not is_there(one):
        return NOT_THERE
    return f"there, {one.observed or NOT_OBSERVED}"


def _yes_no(registered: bool) -> str:
    return "yes" if registered else "no"


def _claim_changes(before: RuleProbe, after: RuleProbe) -> Iterator[RuleChange]:
    old = {(claim.name, claim.source): claim for claim in before.claims}
    for claim in after.claims:
        was = old.get((claim.name, claim.source))
        if was is not None and NOT_OBSERVED not in (was.how, claim.how) and was.found != claim.found:
            yield RuleChange(
                op=claim.name, device=after.device, dtypes=[], field="claim", before=was.found, after=claim.found
            )


def chosen_devices(given: Sequence[str]) -> list[str]:
    """Return the device types named, each once; all of them if none is. `UnknownNameError` for another."""
    for name in given:
        if name not in DEVICES:
            raise UnknownNameError("device", name, DEVICES)
    return list(dict.fromkeys(given or DEVICES))


def chosen_dtypes(given: Sequence[str]) -> list[str]:
    """Return the dtypes named by their short or long names ("fp16", "float16"), all if none is.

    `UnknownNameError` for another.
    """
    names = {short: dtype for dtype in DTYPES for short in (SHORT_DTYPES[dtype], dtype)}
    for name in given:
        if name not in names:
            raise UnknownNameError("autocast dtype", name, names)
    return list(dict.fromkeys(names[name] for name in given or DTYPES))


def chosen_ops(given: Iterable[str], known: Collection[str]) -> list[str]:
    """Return which of the `known` ops are meant: "softmax" and "aten::softmax" mean all overloads of it.

    `UsageError` for a name that none of them has.
    """
    chosen: list[str] = []
    for name in given:
        meant = [op for op in known if name in _names(op)]
        if not meant:
            near = sorted({short_name(op).partition(".")[0] for op in known})
            if get_close_matches(name, near, n=1, cutoff=0.5):
                raise UnknownNameError("op", name, near)
            raise UsageError(f"unknown op {name!r}: no rule and no document is about it; --all lists the ops there are")
        chosen += meant
    return list(dict.fromkeys(chosen))


def restricted(probe: RuleProbe, dtypes: Collection[str], ops: Collection[str] | None) -> RuleProbe:
    """Return `probe` cut down to `dtypes` and, unless None, to the named `ops`, without which it has its claims."""
    kept = [one for one in probe.observations if one.dtype in dtypes and (ops is None or one.name in ops)]
    return structs.replace(
        probe,
        dtypes=[dtype for dtype in probe.dtypes if dtype in dtypes],
        observations=kept,
        claims=probe.claims if ops is None else [],
        without_sample=[name for name in probe.without_sample if ops is None or name in ops],
    )


def _names(op: str) -> tuple[str, ...]:
    """Return what an op may be called: with and without namespace and overload."""
    return op, short_name(op), *((op.partition(".")[0], short_name(op).partition(".")[0]) if "::" in op else ())
