"""Where documents, dispatcher and observation disagree; pure functions on records."""

from collections.abc import Iterable, Iterator

from ampbench.records.rules import (
    BANNED,
    CHANGED,
    FLOAT32,
    LOWER,
    PYTORCH_PAGE,
    REFUSED,
    UNLISTED,
    WIDEST,
    XPU_REFERENCE,
    RuleDisagreement,
    RuleObservation,
    RuleProbe,
)

KINDS = {
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


def find_disagreements(probe: RuleProbe) -> list[RuleDisagreement]:
    """Return all disagreements of a probe, in the order of `KINDS`, public ops before internal ones, then by name.

    The same disagreement in several autocast dtypes is one, with several `dtypes`.
    """
    merged: dict[tuple[object, ...], RuleDisagreement] = {}
    for found in (*_in_each(probe.observations), *_across_dtypes(probe.observations)):
        key = (found.kind, found.op, found.device, found.source, found.documented, found.observed, found.how)
        known = merged.get(key)
        merged[key] = found if known is None else _joined(known, found)
    rank = list(KINDS)
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
    return RuleDisagreement(
        kind=known.kind,
        op=known.op,
        device=known.device,
        dtypes=[*known.dtypes, *(dtype for dtype in found.dtypes if dtype not in known.dtypes)],
        source=known.source,
        documented=known.documented,
        observed=known.observed,
        registered=known.registered,
        how=known.how,
    )
