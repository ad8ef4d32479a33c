"""A comparison as Markdown for a pull request or a job's summary."""

from collections.abc import Mapping, Sequence

from ampbench.comparing.sentences import (
    CHANGED,
    HEADERS,
    case_names,
    difference_said,
    finding_cells,
    lonely,
    mean_cells,
    metric_label,
    precision_heading,
    rules_said,
    rules_title,
    side_name,
    statements,
    verdict,
    warnings,
)
from ampbench.markdown import escaped, folded, markdown_table
from ampbench.verdicts import UNTRUSTED, Comparison, Finding, Verdict

ROWS = 100
"""A comment on GitHub holds 65,536 characters: so many rows of a table fit four times."""

NOT_JUDGED = "Not judged: the control fired or the machine was not fit"
"""What heads the findings that may be changes, and of which nobody can tell."""


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown: the verdict, what changed, what must not be missed, and details to unfold."""
    names = case_names(comparison)
    ours, theirs = side_name(comparison.baseline), side_name(comparison.candidate)
    blocks = [f"**{escaped(verdict(comparison))}**", f"{escaped(ours)} → {escaped(theirs)}"]
    parts = by_weight(comparison.findings)
    if parts["changed"]:
        blocks.append(_cut_table(parts["changed"], names))
    if parts["not judged"]:
        blocks += [f"{NOT_JUDGED} ({len(parts['not judged'])})", _cut_table(parts["not judged"], names)]
    blocks += [f"> {escaped(said)}" for said in warnings(comparison)]
    if comparison.explained:
        blocks.append(folded("Why", explained_list(comparison)))
    if rules := rules_said(comparison):
        title = rules_title(comparison)
        blocks.append(folded(f"{title[0].upper()}{title[1:]}", "\n".join(f"* {escaped(said)}" for said in rules)))
    if comparison.means:
        blocks.append(folded("Geometric means", means_table(comparison)))
    for part, title in (("undecided", "Inconclusive or incomparable"), ("unchanged", "Unchanged")):
        if parts[part]:
            blocks.append(folded(f"{title} ({len(parts[part])})", _cut_table(parts[part], names)))
    if said := conditions(comparison):
        blocks.append(folded("How it was measured", "\n".join(said)))
    return "\n\n".join(blocks) + "\n"


def by_weight(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Return the findings that are "changed", "not judged" (`NOT_JUDGED`), otherwise "undecided" or "unchanged"."""
    parts: dict[str, list[Finding]] = {"changed": [], "not judged": [], "undecided": [], "unchanged": []}
    for one in findings:
        if one.verdict in CHANGED:
            part = "changed"
        elif one.code in UNTRUSTED:
            part = "not judged"
        else:
            part = "unchanged" if one.verdict is Verdict.UNCHANGED else "undecided"
        parts[part].append(one)
    return parts


def findings_table(findings: Sequence[Finding], names: Mapping[str, str]) -> str:
    """Return a table of findings, a line each with its reason and remarks; cases by `names`."""
    rows = [(*finding_cells(one, names), "; ".join([one.reason, *one.remarks])) for one in findings]
    return markdown_table((*HEADERS, "why"), rows, left=(*HEADERS[:3], "why"))


def explained_list(comparison: Comparison) -> str:
    """Return a list of what explains each case that both runs traced."""
    names = case_names(comparison)
    return "\n\n".join(
        "\n".join([f"**{escaped(names.get(case_id, case_id))}**", "", *(f"* {escaped(one)}" for one in said)])
        for case_id, said in comparison.explained.items()
    )


def means_table(comparison: Comparison) -> str:
    """Return a table of the geometric means of what became of each precision."""
    headers = (precision_heading(comparison), "device", "metric", "change", "95% interval", "cases")
    rows = [(one.precision, one.device, metric_label(one.metric), *mean_cells(one)) for one in comparison.means]
    return markdown_table(headers, rows, left=headers[:3])


def conditions(comparison: Comparison) -> list[str]:
    """Return the lines of a list of how both runs were measured, and in what they differ."""
    said = [*map(difference_said, comparison.differences), *statements(comparison), *lonely(comparison)]
    return [f"* {escaped(one)}" for one in said]


def _cut_table(findings: Sequence[Finding], names: Mapping[str, str]) -> str:
    table = findings_table(findings[:ROWS], names)
    more = len(findings) - ROWS
    return table if more <= 0 else f"{table}\n\nand {more} more: `--format csv` has them all"
