"""`ampbench explain rules`: what autocast does to each op, against what documents say of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.options import Format, Json, OutputFormat, chosen_format
from ampbench.errors import NothingComparableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampbench.records.rules import RuleProbe, StoredRules

PARTLY_FAILED = 3


def command(
    stored: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Tell of this stored probe instead of probing.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="cpu, cuda or xpu, here or not. Repeatable. Default: all."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", metavar="NAME", help="Autocast to fp16 or bf16. Repeatable. Default: both."),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", metavar="NAME", help="Only this op, as softmax or softmax.int. Repeatable."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every op, not only what disagrees.")] = False,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Say only what changed since this stored probe."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Also store the probe; compressed if named .gz."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="The longest a device may take.")] = 300.0,
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Run each op that has an autocast rule, and hold what happens to what documents say.

    A device that is not here is stood in for by fake tensors: the rules are seen, no hardware is.

    \b
    Examples:
      ampbench explain rules
      ampbench explain rules --device xpu --op softmax --op prelu
      ampbench explain rules -o torch-2.15.json.gz
      ampbench explain rules --against torch-2.11.json.gz       what an upgrade changed
    """
    from ampbench.cli.explain import printing
    from ampbench.cli.printing import print_note
    from ampbench.rules.choosing import chosen_devices, chosen_dtypes
    from ampbench.store.rules import encode_rules, read_rules

    chosen = chosen_format(format, json)
    devices, dtypes, ops = chosen_devices(device or ()), chosen_dtypes(dtype or ()), op or []
    if output is not None and (stored is not None or ops):
        raise UsageError(f"-o stores a whole new probe: leave out {'--op' if ops else 'FILE'}")
    before = None if against is None else read_rules(against)
    problems: list[str] = []
    if stored is None:
        from ampbench.running.rules import probe_devices

        # An op that is gone can be named only beside the probe that knew it: to compare, all are probed.
        rules, problems = probe_devices(devices, dtypes, ops if before is None else [], timeout)
        for problem in problems:
            print_note(problem)
    else:
        rules = read_rules(stored)
    if output is not None:
        from ampbench.cli.writing import write_files

        write_files({output: encode_rules(rules, output)})
        print_note(f"stored in {output}")
    read = [rules] if before is None else [before, rules]
    *earlier, probes = _chosen(read, devices, dtypes, ops)
    if not probes:
        raise NothingComparableError(f"{stored} has nothing of {', '.join(devices)} in {', '.join(dtypes)}")
    if not earlier:
        printing.print_probes(rules, probes, chosen, everything=every or bool(ops))
    else:
        printing.print_changes(_paired(earlier[0], probes, against), chosen)
    return PARTLY_FAILED if problems else 0


def _chosen(
    read: "Sequence[StoredRules]", devices: "Sequence[str]", dtypes: "Sequence[str]", ops: "Sequence[str]"
) -> "list[list[RuleProbe]]":
    """Return what is asked for of each of `read`; an op need be known to one of them only."""
    from ampbench.rules.choosing import chosen_ops, restricted

    known = {one.name: None for rules in read for probe in rules.probes for one in probe.observations}
    meant = chosen_ops(ops, known) if ops else None
    cut = [[restricted(one, dtypes, meant) for one in rules.probes if one.device in devices] for rules in read]
    return [[probe for probe in probes if probe.dtypes] for probes in cut]


def _paired(
    earlier: "Sequence[RuleProbe]", probes: "Sequence[RuleProbe]", against: Path | None
) -> "list[tuple[RuleProbe, RuleProbe]]":
    """Return earlier and later probe of each device; what is in one only is left out, with a note."""
    from ampbench.cli.printing import print_note

    known = {probe.device: probe for probe in earlier}
    pairs = []
    for probe in probes:
        before = known.get(probe.device)
        if before is not None and set(before.dtypes) & set(probe.dtypes):
            pairs.append((before, probe))
        else:
            print_note(f"{against} has nothing of {probe.device} in {', '.join(probe.dtypes)}")
    if not pairs:
        raise NothingComparableError(f"{against} and this probe have no device and dtype in common")
    return pairs
