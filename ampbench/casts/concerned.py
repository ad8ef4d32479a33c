"""Which changed rules of autocast a trace is concerned with: they meet by the names of functions and ops."""

from collections.abc import Collection, Iterable

from ampbench.casts.changes import TraceChanges
from ampbench.records.casts import CastTrace
from ampbench.records.rules import RuleChange


def concerned_rules(names: Collection[str], rules: Iterable[RuleChange], device: str) -> list[RuleChange]:
    """Return which changes of autocast's rules on `device` are about functions and ops of these bare `names`.

    One of each op: what is observed before what is registered. A rule that came or went with an overload says nothing
    of the op's others, and is left out.
    """
    found: dict[str, RuleChange] = {}
    for rule in rules:
        name, overload = bare_name(rule.op), rule.op.partition(".")[2]
        told = rule.field in ("observed", "registered") or (rule.field == "op" and not overload)
        if told and rule.device == device and {name, name.removesuffix("_loss")} & set(names):
            known = found.setdefault(name, rule)
            if known.field != "observed" and rule.field == "observed":
                found[name] = rule
    return list(found.values())


def changed_names(changes: TraceChanges) -> set[str]:
    """Return the bare names of all functions and ops that do otherwise, or whose operands are cast otherwise."""
    named = [name for one in changes.ops for name in (one.function, *one.ops_before, *one.ops_after)]
    return {bare_name(name) for name in (*named, *(one.function for one in changes.casts))}


def used_names(*traces: CastTrace) -> set[str]:
    """Return the bare names of all functions and ops of traces."""
    named = {name for trace in traces for one in trace.ops for name in (one.name, one.function) if name}
    return set(map(bare_name, named))


def bare_name(name: str) -> str:
    """Return "rms_norm" for "torch.nn.functional.rms_norm", "aten._rms_norm_" and the rule of "aten::rms_norm.x"."""
    _, qualified, op = name.rpartition("::")
    return (op.partition(".")[0] if qualified else name.rpartition(".")[2]).strip("_")
