"""`ampbench compare` and `ampbench gate`: two stored runs, and what became of every metric of every case."""

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Every,
    Format,
    Keyword,
    Made,
    Only,
    Results,
    Threshold,
    run_argument,
    run_option,
    typed,
    typed_beside,
)
from ampbench.cli.printing import OutputFormat, print_document, print_forms, print_note
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.kinds import KINDS, named, verb_of

if TYPE_CHECKING:
    from ampbench.judge.gate import Policy
    from ampbench.records.changes import Comparison
    from ampbench.store import StoredRun


TOLD_WHOLE = ("baseline", "candidate", "results", "format", "json")
"""The parameters that mean something where what changed is told whole, without verdicts on cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How two runs are judged, as it is typed: a policy's file, and what flags say instead of it."""

    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="What the gate lets pass (docs/gate.md). Default: ampbench-gate.toml, if any.",
        ),
    ] = ""
    only: Only = ""
    anchor: Annotated[str, run_option("--anchor", "Another run to compare with, such as the last release's.")] = ""
    threshold: Threshold = ""
    min_decided: Annotated[
        str, typer.Option(metavar="SHARE", help="The share of each kind's findings that must be decided. Default: 50%.")
    ] = ""
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Fail on any doubt as well.", show_default=False)
    ] = None

    def read(self, found: bool = True) -> "Policy":
        """Return the policy in the file named, else (if `found`) in ampbench-gate.toml of the current folder.

        Where there is none, it is the default one. What flags say wins. Raises `UsageError` for what cannot be meant.
        """
        from ampbench.judge.gate import FILE_NAME, Policy, check_kinds, parse_share, read_policy

        path = Path(self.policy or FILE_NAME)
        policy = read_policy(path) if self.policy or (found and path.is_file()) else Policy()
        changes: dict[str, Any] = {}
        if self.only:
            changes["only"] = check_kinds(name.strip() for name in self.only.split(","))
        if self.anchor:
            changes["anchor"] = self.anchor
        if self.min_decided:
            changes["min_decided"] = typed("--min-decided", partial(parse_share, most=1.0), self.min_decided)
        if self.strict is not None:
            changes["strict"] = self.strict
        policy = replace(policy, **changes)
        if not self.threshold:
            return policy
        return policy.with_time_threshold(typed("--threshold", parse_share, self.threshold))

    def words(self, gate: bool) -> str:
        """Return the options that have stored runs judged like this by a `gate`, or compared, each after a space."""
        values = {"--only": self.only, "--threshold": self.threshold}
        if not gate:
            return _words(values)
        values |= {"--policy": self.policy, "--anchor": self.anchor, "--min-decided": self.min_decided}
        return _words(values) + {None: "", True: " --strict", False: " --no-strict"}[self.strict]


def _words(values: Mapping[str, str]) -> str:
    return "".join(f" {option} {shlex.quote(value)}" for option, value in values.items() if value)


def command(
    *,
    context: typer.Context,
    baseline: Annotated[str, run_argument("BASE", f"A run: {A_RUN}.")],
    candidate: Annotated[str, run_argument("CANDIDATE", "Another, which is compared with it.")],
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    only: Only = "",
    threshold: Threshold = "",
    every: Every = False,
    format: Format,
) -> int:
    """Compare two stored runs: what became slower, bigger or less accurate, and whether that is certain.

    The exit code says nothing of what was found: `ampbench gate` judges.

    Where both runs hold traces of a case, as `ampbench ab` makes of regressed cases, changes of dtypes, casts and
    autocast's rules are listed with it.

    \b
    Examples:
      ampbench compare 20260131T120000Z latest
      ampbench compare main.jsonl branch.jsonl -k "resnet and training" --only time --threshold 5%
      ampbench compare BASE CANDIDATE --format markdown >> "$GITHUB_STEP_SUMMARY"
    """
    from ampbench import store
    from ampbench.judge.compare import compare_files

    policy = Judging(only=only, threshold=threshold).read(found=False)
    paths = store.find_run(baseline, results, print_note), store.find_run(candidate, results, print_note)
    kind = KINDS.get(store.read_header(paths[0]).explains)
    if kind is not None and kind.changes and store.read_header(paths[1]).explains == kind.name:
        for said in typed_beside(context, TOLD_WHOLE):
            verb = f"ampbench {verb_of(kind.name)}"
            raise UsageError(f"{said} means nothing between two runs of {verb}, which are told whole: leave it out")
        print_document(named(kind.changes)(*map(store.read_run, paths)), format)
        return 0
    compared = compare_files(paths[0], paths[1], policy.threshold_of)
    print_comparison(narrowed(compared, keyword, policy.kinds), format, show_all=every)
    return 0


def narrowed(comparison: "Comparison", keyword: str, kinds: Collection[str]) -> "Comparison":
    """Return a comparison with the findings of the cases that match `keyword`, of `kinds` and of outcomes alone.

    What explains cases is of no kind and stays. Raises `NothingToRunError` where no case
    matches, or none of both runs has a number and nothing is explained.
    """
    from ampbench.core.keywords import matches
    from ampbench.judge.compare import of_cases, of_kinds

    chosen = of_cases(comparison, partial(matches, keyword))
    explains = bool(comparison.explained or comparison.rule_devices)
    if not comparison.findings and not explains:
        raise NothingToRunError("the runs have cases in common, but no number of any of them on either side")
    if keyword and not chosen.findings and not chosen.explained:
        raise NothingToRunError(f"no case of both runs matches -k {keyword!r}")
    return of_kinds(chosen, kinds)


def print_comparison(comparison: "Comparison", format: OutputFormat, show_all: bool = False) -> None:
    """Print a comparison on stdout in `format`."""
    from ampbench.judge import show

    print_forms(
        format,
        lines=lambda console: show.comparison_lines(comparison, console.width, show_all),
        markdown=lambda: show.comparison_markdown(comparison),
        json=lambda: show.comparison_json(comparison),
        csv=lambda: show.comparison_csv(comparison),
    )


def gate(
    *,
    baseline: Annotated[str, run_argument("BASE", f"A run: {A_RUN}.")],
    candidate: Annotated[str, run_argument("CANDIDATE", "The run to let pass or not.")],
    judging: Annotated[Judging, Made(Judging)],
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    every: Every = False,
    format: Format,
) -> int:
    """Compare two stored runs under a policy: exit code 0 if the candidate may pass, 1 on a regression.

    \b
    Examples:
      ampbench gate main.jsonl latest
      ampbench gate main.jsonl latest --anchor release-1.4.jsonl
      ampbench gate main.jsonl latest --only time --threshold 5% --min-decided 75%
    """
    rules = judging.read()
    from ampbench import store
    from ampbench.core import keywords
    from ampbench.judge.compare import compare, of_cases

    names = [baseline, candidate, *([rules.anchor] if rules.anchor else [])]
    base, new, *release = [store.read_run(path) for path in [store.find_run(name, results, _refuse) for name in names]]
    wanted = partial(keywords.matches, keyword)
    if keyword and not any(map(wanted, (*base.cases, *new.cases))):
        raise NothingToRunError(f"neither run has a case that matches -k {keyword!r}")
    compared = of_cases(compare(base, new, rules.threshold_of), wanted)
    against = [of_cases(compare(run, new, rules.anchor_threshold_of), wanted) for run in release]
    failed = [case_id for case_id in failed_cases(new) if wanted(case_id)]
    return report_gate(compared, rules, against[0] if against else None, failed, format, every)


def _refuse(doubt: str) -> None:
    """Raise `UsageError` where it is in doubt which run is the latest: a gate judges none that was not meant."""
    raise UsageError(f"{doubt}; name the run that is meant")


def failed_cases(stored: "StoredRun") -> list[str]:
    """Return the ids of the cases that failed in a run."""
    from ampbench.judge.rounds import FAILED, MeasuredRun

    run = MeasuredRun.of(stored)
    return [case_id for case_id in stored.cases if run.outcome(case_id).name == FAILED]


def report_gate(
    comparison: "Comparison",
    policy: "Policy",
    anchor: "Comparison | None",
    failed: Iterable[str],
    format: OutputFormat,
    every: bool = False,
) -> int:
    """Print a comparison and what the gate says of it, and return the gate's exit code.

    `failed` are the ids of the cases that failed in the candidate. With a machine's format the verdict's lines go to
    stderr; JSON has the verdict as "gate".
    """
    from ampbench.judge import show
    from ampbench.judge.compare import of_kinds
    from ampbench.judge.gate import judge

    result = judge(comparison, policy, anchor, failed)
    shown = of_kinds(comparison, policy.kinds)
    print_forms(
        format,
        lines=lambda console: show.gate_lines(shown, result, policy, console.width, every),
        markdown=lambda: show.gate_markdown(shown, result, policy),
        json=lambda: show.gate_json(shown, result, policy),
        csv=lambda: show.comparison_csv(shown),
    )
    for line in show.gate_said(shown, result, policy) if format in (OutputFormat.JSON, OutputFormat.CSV) else ():
        print_note(line)
    return result.exit_code
