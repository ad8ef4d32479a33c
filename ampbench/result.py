"""A run as an object: its tables, verdicts, statements and data, which the command line prints."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampbench.core import metrics
from ampbench.core.budget import Budget
from ampbench.core.statement import Statement
from ampbench.core.units import counted
from ampbench.judge import frame, notes
from ampbench.judge.verdict import crossings, takes_of, verdicts_of
from ampbench.records.changes import VERDICT_COLUMNS, Verdict
from ampbench.records.run import LATEST
from ampbench.show import results, studies
from ampbench.show.charts import colour_variables, speed_layers, speed_points
from ampbench.show.document import Document, Section, finite
from ampbench.show.networks import networks_of
from ampbench.show.rows import Group, Row, Take, described, group_of, grouped, precision_label, with_verdicts
from ampbench.show.studies import Subject
from ampbench.show.terminal import Printed
from ampbench.store import StoredRun, read_found
from ampbench.store.folder import trainings_beside
from ampbench.store.run_file import write_whole
from ampbench.studies import check
from ampbench.studies.study import Study, study_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Plot:
    """A chart as a Vega-Lite `spec` with its data. A notebook draws it; any viewer of Vega-Lite does."""

    spec: Mapping[str, Any]
    title: str = ""

    def __repr__(self) -> str:
        points = counted(len(self.spec["data"]["values"]), "point")
        return f"<ampbench.Plot: {self.title}, {points}; a notebook draws it, .spec is Vega-Lite>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the chart for JupyterLab and VS Code and, where vl-convert is installed, for all others."""
        bundle: dict[str, Any] = {"application/vnd.vegalite.v5+json": self.spec, "text/plain": repr(self)}
        try:
            import vl_convert
        except ImportError:
            return bundle
        return {**bundle, "image/svg+xml": vl_convert.vegalite_to_svg(dict(self.spec))}


def _plain(statement: Statement) -> dict[str, Any]:
    return {**asdict(statement), "facts": dict(statement.facts)}


def plotted(spec: Mapping[str, Any], title: str) -> Plot:
    """Return a chart in the colours of a page, without CSS variables, which a notebook lacks."""
    sheet = colour_variables() + (files("ampbench.report") / "assets" / "report.css").read_text()
    colours = dict(reversed(re.findall(r"(--[\w-]+): (#\w+);", sheet)))  # the first ones are a light page's
    whole = {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "background": "white", **spec}
    text = re.sub(r"var\((--[\w-]+)\)", lambda name: colours[name[1]], json.dumps(whole))
    return Plot(json.loads(text), title)


@dataclass(frozen=True, eq=False)
class Shown(Printed):
    """A run in a program, which prints and saves itself."""

    stored: StoredRun

    def save(self, folder: Path | str) -> Path:
        """Write the run into a results folder, for `show`, `compare` and `ampbench.open`; return its file.

        Raises `StoreError` where it cannot be written.
        """
        return write_whole([self.stored], folder)[self.stored.header.run]

    def __repr__(self) -> str:
        name, cases = type(self).__name__, counted(len(self.stored.cases), "case")
        return f"<ampbench.{name} {self.stored.header.run}: {cases}>"


@dataclass(frozen=True, eq=False, repr=False)
class Result(Shown):
    """A run, judged by a budget of error. `ampbench.measure` and `ampbench.open` return it.

    Printing shows the table, the advice and the notes, as `ampbench run` and `show` do.
    """

    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        frame.require_measured(self.stored)

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each case, a column for each metric and for the verdict, as `--json` prints."""
        groups = grouped(with_verdicts(frame.run_rows(self.stored), self._verdicts))
        return [row for rows in groups.values() for row in rows]

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict on each case, in the order of `rows`."""
        return [self._verdicts[row["case_id"]] for row in self.rows]

    @cached_property
    def takes(self) -> Mapping[Group, Take]:
        """The answer for each table in which anything was measured."""
        return takes_of(self.stored, self.budget, self._trainings)

    @property
    def take(self) -> Verdict | list[Verdict | None] | None:
        """The verdict on the precision to take, None without advice; a list for several tables."""
        taken = [take.taken for take in self.takes.values()]
        return taken if len(taken) > 1 else next(iter(taken), None)

    @cached_property
    def statements(self) -> list[Statement]:
        """The answers, their hints, the crossings of a sweep and the notes on the run, as codes with facts."""
        answers = [statement for take in self.takes.values() for statement in (take.statement, *take.hints)]
        return [*answers, *self.crossings, *self.notes(self.rows)]

    @cached_property
    def crossings(self) -> list[Statement]:
        """From which value of a swept number on each precision is faster; empty without such a sweep."""
        return crossings(self.stored, self.takes)

    def notes(self, rows: Sequence[Row]) -> list[Statement]:
        """Return the notes on some of the rows, as codes with facts."""
        return [*notes.statements(self.stored, rows), *notes.skips(rows)]

    def document(self, case_ids: Collection[str] | None = None, again: str = "", *, verbose: bool = False) -> Document:
        """Return the tables of the cases `case_ids` (None: all), with the advice and the notes.

        `again` is the command that shows the run. `verbose` of a single case shows all that is known of it.
        """
        rows = [row for row in self.rows if case_ids is None or row["case_id"] in case_ids]
        return Document(
            sections=lambda: self._sections(rows, again, verbose=verbose),
            data=lambda: [*map(self._with_crossings, rows)] if self.crossings else rows,
            columns=[*metrics.COLUMNS, *VERDICT_COLUMNS],
            rows=lambda: rows,
        )

    def _sections(self, rows: Sequence[Row], again: str, *, verbose: bool) -> list[Section]:
        stored, groups = self.stored, grouped(rows)
        if verbose and len(rows) == 1:
            case_id = rows[0]["case_id"]
            records = [
                entries.get(case_id) for entries in (stored.memory, stored.divergence, stored.late, stored.failures)
            ]
            rounds = [timing for timing in stored.rounds if timing.case_id == case_id]
            return [results.case_section(rows[0], rounds, records)]
        whole, pointers = [row for row in self.rows if group_of(row) in groups], list[str]()
        shown = {row["case_id"] for row in rows}
        if verbose:
            pointers = studies.lines(check.pointers(stored))
        screen = results.Screen(
            header=stored.header,
            cases=stored.cases,
            rows=rows,
            takes=self.takes,
            networks=networks_of(whole, self.takes, stored.cases),
            crossings=[crossing for crossing in self.crossings if crossing.subject in shown],
            notes=self.notes(rows),
            pointers=pointers,
            again=again,
        )
        return results.sections(screen, verbose=verbose)

    def _with_crossings(self, row: Row) -> Row:
        """Return a row with the crossings of its precision, for JSON."""
        label = precision_label(row)
        return {**row, "crossings": [_plain(found) for found in self.crossings if found.facts["precision"] == label]}

    @property
    def frame(self) -> "pd.DataFrame":
        """The rows as `ampbench.load` gives them, with the verdicts by this budget."""
        import pandas as pd

        table = frame.frame_of(self.stored).to_pandas()
        columns = [self._verdicts[case_id].columns() for case_id in table["case_id"]]
        for name, dtype in VERDICT_COLUMNS.items():
            table[name] = pd.Series([row[name] for row in columns], dtype=dtype)
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return the run's id, its rows, verdicts and statements as JSON has them, None for undefined numbers."""
        data = {
            "run": self.stored.header.run,
            "rows": [dict(row) for row in self.rows],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "statements": [*map(_plain, self.statements)],
        }
        plain: dict[str, Any] = finite(data)
        return plain

    def plot(self) -> Plot:
        """Return a chart of each precision's speed, with its interval, against its error, which a notebook shows.

        A cross marks a case that is not ok.
        """
        tables = [f"{group.workload} · {described(group)}" for group in map(group_of, self.rows)]
        points = speed_points(zip(tables, self.rows, strict=True))
        layers = speed_layers(points, self.budget.output_rel_l2) if points else []
        spec = {
            "data": {"values": points},
            "facet": {
                "row": {"field": "table", "title": None, "header": {"labelOrient": "top", "labelAnchor": "start"}}
            },
            "spec": {"width": 420, "height": 220, "layer": layers},
        }
        return plotted(spec, "speed against error")

    @cached_property
    def _trainings(self) -> list[StoredRun]:
        return trainings_beside(self.stored)

    @cached_property
    def _verdicts(self) -> dict[str, Verdict]:
        return verdicts_of(self.stored, self.budget, self._trainings)


@dataclass(frozen=True, eq=False, repr=False)
class Findings(Shown):
    """The findings of a study. The functions of `ampbench.explain`, `ampbench.study` and `ampbench.open` return them.

    Printing shows the output of the verb of the same name.
    """

    @property
    def study(self) -> Study[Any, Any]:
        """The study of this run."""
        return study_of(self.stored.header.explains)

    @cached_property
    def statements(self) -> list[Statement]:
        """The conclusions as codes with facts: case by case, the most important first."""
        return [
            statement for subject in self._subjects for statement in self.study.conclusions(subject.case, subject.found)
        ]

    @cached_property
    def tables(self) -> "dict[str, pd.DataFrame]":
        """The tables by the names that they have in JSON: rows of all cases, the case's id first."""
        import pandas as pd

        return {
            table.key: pd.DataFrame(row for subject in self._subjects for row in studies.rows_of(table, subject))
            for table in self.study.tables
            if table.key
        }

    @property
    def frame(self) -> "pd.DataFrame":
        """The first table: the rows that `--format csv` prints."""
        return next(iter(self.tables.values()))

    @property
    def code(self) -> dict[str, dict[str, str]]:
        """The code to paste of each case with any, by the case's id and then by the tool that it is for."""
        cases = [subject for subject in self._subjects if subject.case]
        texts = {
            subject.case.case_id: self.study.code(subject.case, subject.found) for subject in cases if subject.case
        }
        return {case_id: dict(code) for case_id, code in texts.items() if code}

    def document(self) -> Document:
        """Return the statements and tables, as the verb prints them."""
        return studies.document(self.study, self.stored, list(self.stored.cases), in_program=True)

    @cached_property
    def _subjects(self) -> list[Subject[Any]]:
        return studies.subjects_of(self.study, self.stored)


def open(run: Path | str = LATEST, results: Path | str = "results") -> Result | Findings:
    """Return a stored run: by its id, the beginning or end of it, "latest", or the path of its file.

    One that explains or studies is `Findings`. Raises `UnknownNameError` with the nearest ids, `StoreError` for a
    damaged file.
    """
    stored = read_found(str(run), results)
    return Findings(stored) if stored.header.explains else Result(stored)
