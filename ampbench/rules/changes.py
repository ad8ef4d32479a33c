"""What changed in autocast's rules from one probe to a later one, and how it is said; pure functions on records."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ampbench.precisions import SHORT_DTYPES
from ampbench.records.rules import LOWER, NOT_OBSERVED, RuleChange, RuleObservation, RuleProbe
from ampbench.rules.choosing import DTYPES, short_name
from ampbench.rules.judging import RULES, is_there
from ampbench.units import counted

WORDS = {LOWER: "lower"}
"""Categories that are called otherwise in sentences and tables, where the room is short (`worded`)."""

NOT_THERE = "not there"
"""What a changed op is, or was, that this torch does not have."""

FIELDS = ("observed", "registered", "variant", "claim", "op", "documented")
"""The order in which changes are listed."""

_UNSEEN = f"there, {NOT_OBSERVED}"
_NAMED = 3
"""So many ops are named in a phrase on several."""


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


def alters(change: RuleChange) -> bool:
    """Return whether autocast now does something else: another rule, another treatment of a call, or a rule gone.

    What documents say, the claims tried, ops that are new, and ops gone of which no rule was ever observed change
    nothing for a program that ran before.
    """
    if change.field == "op":
        return change.after == NOT_THERE and change.before != _UNSEEN
    return change.field in ("observed", "registered") or change.field.startswith("variant ")


def rank(change: RuleChange) -> tuple[int, str, str, str]:
    """Return what changes are sorted by: their field in the order of `FIELDS`, then the op and the device."""
    return FIELDS.index(change.field.split()[0]), change.op, change.field, change.device


def rule_id(change: RuleChange) -> str:
    """Return what a changed rule is called where cases have ids: the op and the device type, `softmax.int/cuda`."""
    return f"{short_name(change.op)}/{change.device}"


def rule_change_said(rule: RuleChange) -> str:
    """Return "rms_norm on cuda: unlisted → float32", with the autocast dtypes where it is not both."""
    only = "" if len(rule.dtypes) in (0, len(DTYPES)) else f" to {' and '.join(SHORT_DTYPES[d] for d in rule.dtypes)}"
    field = "" if rule.field in ("observed", "op", "claim") else f", {rule.field}"
    was, now = worded(rule.before), worded(rule.after)
    return f"{short_name(rule.op)} on {rule.device}{only}{field}: {was} → {now}"


def worded(value: str) -> str:
    """Return a category, or whatever else a rule was and is, as sentences and tables call it."""
    return WORDS.get(value, value)


def changed_ops_said(changes: Iterable[RuleChange]) -> list[str]:
    """Return a sentence for each rule that changed, in the order given; what `alters` nothing is left out.

    Devices of which the same is said share a sentence, and where another rule is observed, that it is registered now is
    not said too.
    """
    known = list(filter(alters, changes))
    observed = {(one.op, one.device) for one in known if one.field == "observed"}
    alike: dict[tuple[str, ...], list[RuleChange]] = {}
    for one in known:
        if one.field == "registered" and (one.op, one.device) in observed:
            continue
        alike.setdefault((one.op, one.field, one.before, one.after, *sorted(one.dtypes)), []).append(one)
    return [rule_change_said(replace(one[0], device=", ".join(each.device for each in one))) for one in alike.values()]


def others_said(changes: Iterable[RuleChange]) -> list[str]:
    """Return in phrases what changed without altering what autocast does to a program that ran before."""
    kinds: dict[str, list[str]] = {"gone": [], "new": [], "claim": [], "documented": []}
    for one in changes:
        if not alters(one):
            presence = "gone" if one.after == NOT_THERE else "new"
            kind = presence if one.field == "op" else one.field.split()[0]
            kinds[kind].append(one.op if kind == "claim" else short_name(one.op))
    names = {kind: list(dict.fromkeys(found)) for kind, found in kinds.items()}
    phrases = (
        ("gone", "op", "gone of which no rule was ever observed"),
        ("new", "new op", "with a rule"),
        ("documented", "op", "documented otherwise"),
        ("claim", "claim", "tried with another outcome"),
    )
    return [
        f"{counted(len(names[kind]), what)} {more}: {few_phrases(names[kind])}"
        for kind, what, more in phrases
        if names[kind]
    ]


def few_phrases(names: Sequence[str]) -> str:
    """Return the first phrases in a row, which may have commas of their own, and how many more there are."""
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more:,} more" if more > 0 else "")


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
        yield "registered", _word(old.registered, "yes", "no"), _word(new.registered, "yes", "no")
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
    return f"there, {one.observed or 'not observed'}"


def _word(held: bool, yes: str, no: str) -> str:
    return yes if held else no


def _claim_changes(before: RuleProbe, after: RuleProbe) -> Iterator[RuleChange]:
    old = {(claim.name, claim.source): claim for claim in before.claims}
    for claim in after.claims:
        was = old.get((claim.name, claim.source))
        if was is not None and NOT_OBSERVED not in (was.how, claim.how) and was.found != claim.found:
            yield RuleChange(
                op=claim.name, device=after.device, dtypes=[], field="claim", before=was.found, after=claim.found
            )
