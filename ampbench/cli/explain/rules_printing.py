"""The rules of autocast on stdout: sections for people, flat rows and documents for machines."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from ampbench.cli.printing import OutputFormat, csv_text, json_document, print_sections, print_text
from ampbench.instruments.rules import show
from ampbench.instruments.rules.findings import compare_rules, find_disagreements
from ampbench.records.rules import RuleProbe
from ampbench.records.run import Header

COLUMNS = (
    "op", "overload", "device", "dtype", "xpu_reference", "pytorch_page", "registered", "observed", "how", "reason",
    "fp64", "integer", "in-place", "out=", "dtype=", "disagreements",
)  # fmt: skip
"""Of a CSV: an observation a row; variants of the call and the kinds of its disagreements at the end."""

CHANGE_COLUMNS = ("device", "field", "op", "dtypes", "before", "after")


def print_probes(
    header: Header,
    probes: Sequence[RuleProbe],
    format: OutputFormat,
    *,
    everything: bool = False,
    ops_first: bool = False,
) -> None:
    """Print `probes` of a run with this `header`.

    `everything` lists every op in a table or in Markdown too, which other formats always do; `ops_first` lists them
    before what disagrees and counts none, as for the few ops that someone asked for.
    """
    if format is OutputFormat.JSON:
        found = [
            asdict(probe) | {"disagreements": [asdict(one) for one in find_disagreements(probe)]} for probe in probes
        ]
        told = {"run": header.run, "note": show.where_observed(probes), "environment": asdict(header.environment)}
        print_text(json_document(told | {"probes": found}))
    elif format is OutputFormat.CSV:
        print_text(csv_text(COLUMNS, (row for probe in probes for row in _rows(probe))))
    else:
        print_sections(show.told_by_op(probes) if ops_first else show.report(probes, everything), format)


def print_changes(pairs: Sequence[tuple[RuleProbe, RuleProbe]], format: OutputFormat) -> None:
    """Print what changed between the two probes of each pair."""
    if format is OutputFormat.JSON:
        found = [
            {
                "device": after.device,
                "before": {"torch_version": before.torch_version, "how": before.how},
                "after": {"torch_version": after.torch_version, "how": after.how},
                "changes": [asdict(one) for one in compare_rules(before, after)],
            }
            for before, after in pairs
        ]
        print_text(json_document(found))
    elif format is OutputFormat.CSV:
        changes = [one for before, after in pairs for one in compare_rules(before, after)]
        rows = ([one.device, one.field, one.op, " ".join(one.dtypes), one.before, one.after] for one in changes)
        print_text(csv_text(CHANGE_COLUMNS, rows))
    else:
        print_sections(show.changes(pairs), format)


def _rows(probe: RuleProbe) -> Iterable[list[object]]:
    """Return a probe's observations as rows of `COLUMNS`."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for found in find_disagreements(probe):
        for dtype in found.dtypes:
            known = kinds.setdefault((found.op, dtype), [])
            known += [] if found.kind in known else [found.kind]
    for one in probe.observations:
        documented = [one.documented.get(source) for source in show.SOURCES]
        variants = [one.variants.get(name) for name in COLUMNS[10:15]]
        seen = [one.registered, one.observed, one.how, one.reason]
        named = "; ".join(kinds.get((one.name, one.dtype), []))
        yield [one.op, one.overload, one.device, one.dtype, *documented, *seen, *variants, named]
