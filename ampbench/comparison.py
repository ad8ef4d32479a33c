"""A comparison of two runs as an object: changes with their evidence, the gate's result, text and data."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ampbench.core.statement import Severity, Statement, state
from ampbench.errors import NothingToRunError, UsageError
from ampbench.judge.compare import compare as compare_runs
from ampbench.judge.compare import narrowed
from ampbench.judge.gate import Policy, check_kinds, judge
from ampbench.records.case import matches
from ampbench.records.changes import Change, ControlCode, GateResult
from ampbench.records.changes import Comparison as Compared
from ampbench.show import comparison as show
from ampbench.show.document import Document, records
from ampbench.show.terminal import Printed
from ampbench.store import StoredRun, read_found

if TYPE_CHECKING:
    import pandas as pd

    from ampbench.result import Result


class Comparison(Printed):
    """Two runs compared under a `policy` of thresholds and kinds, of the cases that match `keyword`.

    Printing shows the output of `ampbench compare`. Raises as `ampbench.compare`.
    """

    def __init__(
        self,
        base: StoredRun,
        candidate: StoredRun,
        policy: Policy | None = None,
        keyword: str = "",
    ):
        self.base, self.candidate = base, candidate
        self._policy, self._wanted = policy or Policy(), partial(matches, keyword)
        self.keyword = keyword
        self.whole = narrowed(compare_runs(base, candidate, self._policy.threshold_of), self._wanted)

    @cached_property
    def compared(self) -> Compared:
        """The changes of the policy's kinds, with everything a reader needs to weigh them.

        Raises `NothingToRunError` where no case matches, or neither run has a number or an explanation.
        """
        whole = self.whole
        if not (whole.findings or whole.explained or ((whole.rule_devices or whole.checks) and not self.keyword)):
            nothing = "the runs have cases in common, but no number of any of them on either side"
            raise NothingToRunError(f"no case of both runs matches -k {self.keyword!r}" if self.keyword else nothing)
        return self.gated

    @property
    def gated(self) -> Compared:
        """The same comparison; it may be empty."""
        return narrowed(self.whole, self._wanted, self._policy.kinds)

    @property
    def changes(self) -> list[Change]:
        """The verdict on each metric of each case, the most important first."""
        return list(self.compared.findings)

    @property
    def statements(self) -> list[Statement]:
        """The result of the controls and the caveats, as codes with facts."""
        control = self.compared.control
        severity = Severity.PROBLEM if control.fired else Severity.INFO
        verdict = state(control.code, "", severity, cells=control.cells, **control.facts)
        return [*([] if control.code is ControlCode.NO_TIMES else [verdict]), *self.compared.caveats]

    @property
    def frame(self) -> "pd.DataFrame":
        """A row for each change, with the columns of `ampbench compare --format csv`."""
        import pandas as pd

        return pd.DataFrame(records(show.finding_columns({}), self.compared.findings))

    def gate(self) -> GateResult:
        """Return whether the candidate may pass under the policy."""
        return judge(self.whole, self._policy)

    def document(self) -> Document:
        """Return the output of `ampbench compare`."""
        return show.comparison_document(self.compared)

    def __repr__(self) -> str:
        runs = " to ".join(run.header.run for run in (self.base, self.candidate))
        return f"<ampbench.Comparison {runs}: {len(self.gated.findings)} changes>"


def compare(
    base: "str | Path | StoredRun | Result",
    candidate: "str | Path | StoredRun | Result",
    results: Path | str = "results",
    *,
    keyword: str = "",
    only: Sequence[str] = (),
    threshold: float | None = None,
) -> Comparison:
    """Return the changes of speed, memory and accuracy from `base` to `candidate`, and whether they are certain.

    A run is a result, or named as on the command line: its id, the beginning or end of it, "latest", or a path.
    `keyword` chooses cases as -k does, `only` kinds (time, memory, accuracy, rules); `threshold` is the largest
    relative change of a time that counts as none (0.05: 5%). Raises `NothingComparableError` where the runs have no
    case in common, `UnknownNameError` for an unknown run, `StoreError` for a damaged file.
    """
    policy = Policy(only=check_kinds(only), thresholds={} if threshold is None else {"time": threshold})

    def read(run: "str | Path | StoredRun | Result") -> StoredRun:
        if isinstance(run, str | Path):
            return read_found(str(run), results)
        stored = getattr(run, "stored", run)
        if not isinstance(stored, StoredRun):
            raise UsageError(f"{type(run).__name__} is no run: compare results, or names or files of runs")
        return stored

    return Comparison(read(base), read(candidate), policy, keyword)
