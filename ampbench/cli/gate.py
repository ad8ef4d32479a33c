"""`ampbench gate`: two stored runs compared under a policy, with an exit code; what `ampbench ab --gate` shares."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ampbench.cli import completing
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
    typed,
)
from ampbench.cli.printing import OutputFormat
from ampbench.errors import NothingToRunError, UsageError

if TYPE_CHECKING:
    from ampbench.judge.policy import Policy
    from ampbench.records.verdicts import Comparison
    from ampbench.store import StoredRun


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
    anchor: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Another run to compare with, such as the last release's.",
            autocompletion=completing.runs,
        ),
    ] = ""
    threshold: Threshold = ""
    max_inconclusive: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="The largest share (0 to 1) of time findings that may stay undecided."),
    ] = None
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Fail on any doubt as well.", show_default=False)
    ] = None

    def read(self, found: bool = True) -> "Policy":
        """Return the policy in the file named, else (if `found`) in ampbench-gate.toml of the current folder.

        Where there is none, it is the default one. What flags say wins. Raises `UsageError` for what cannot be meant.
        """
        from ampbench.judge.policy import FILE_NAME, Policy, check_kinds, parse_percent, read_policy

        path = Path(self.policy or FILE_NAME)
        policy = read_policy(path) if self.policy or (found and path.is_file()) else Policy()
        changes: dict[str, Any] = {}
        if self.only:
            changes["only"] = check_kinds(name.strip() for name in self.only.split(","))
        if self.anchor:
            changes["anchor"] = self.anchor
        if self.max_inconclusive is not None:
            if not 0 <= self.max_inconclusive <= 1:
                raise UsageError(f"--max-inconclusive is a share from 0 to 1, not {self.max_inconclusive:g}")
            changes["max_inconclusive"] = self.max_inconclusive
        if self.strict is not None:
            changes["strict"] = self.strict
        policy = replace(policy, **changes)
        if not self.threshold:
            return policy
        return policy.with_time_threshold(typed("--threshold", parse_percent, self.threshold))

    def words(self, gate: bool) -> str:
        """Return the options that have stored runs judged like this by a `gate`, or compared, each after a space."""
        values = {"--only": self.only, "--threshold": self.threshold}
        if not gate:
            return _words(values)
        values |= {"--policy": self.policy, "--anchor": self.anchor}
        if self.max_inconclusive is not None:
            values["--max-inconclusive"] = f"{self.max_inconclusive:g}"
        return _words(values) + {None: "", True: " --strict", False: " --no-strict"}[self.strict]


def _words(values: Mapping[str, str]) -> str:
    return "".join(f" {option} {shlex.quote(value)}" for option, value in values.items() if value)


def command(
    *,
    baseline: Annotated[str, typer.Argument(metavar="BASE", help=f"A run: {A_RUN}.", autocompletion=completing.runs)],
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="The run to let pass or not.", autocompletion=completing.runs)
    ],
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
      ampbench gate main.jsonl latest --only time --threshold 5 --max-inconclusive 0.25
    """
    rules = judging.read()
    from ampbench import store
    from ampbench.base import keywords
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
    from ampbench.cli.printing import print_forms, print_note
    from ampbench.judge import show
    from ampbench.judge.gate import judge

    result = judge(comparison, policy, anchor, failed)
    print_forms(
        format,
        lines=lambda console: show.gate_lines(comparison, result, policy, console.width, every),
        markdown=lambda: show.gate_markdown(comparison, result, policy),
        json=lambda: show.gate_json(comparison, result, policy),
        csv=lambda: show.comparison_csv(comparison),
    )
    for line in show.gate_said(result, policy) if format in (OutputFormat.JSON, OutputFormat.CSV) else ():
        print_note(line)
    return result.exit_code
