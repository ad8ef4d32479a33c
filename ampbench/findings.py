"""What a study found, as an object: its statements, tables, charts and data, as the command line prints them."""

from dataclasses import dataclass
from functools import cached_property
from textwrap import indent
from typing import TYPE_CHECKING, Any

from ampbench.core.statement import Statement
from ampbench.result import WIDTH, Shown
from ampbench.show import studies
from ampbench.show.charts import drawn
from ampbench.show.data import finite
from ampbench.show.document import Document, records
from ampbench.show.notebook import Plot, charts_in_one
from ampbench.show.terminal import document_lines
from ampbench.studies.study import Study, study_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from rich.text import Text


@dataclass(frozen=True, eq=False, repr=False)
class Findings(Shown):
    """What a study found. The functions of `ampbench.explain` and `ampbench.study` return it.

    Printing shows what the verb of the same name prints.
    """

    @property
    def study(self) -> Study[Any, Any]:
        """The study of which this is a run."""
        return study_of(self.stored.header.explains)

    @cached_property
    def statements(self) -> list[Statement]:
        """What follows, as codes with facts: of one case after the other, the most important first."""
        return [each for subject in self._subjects for each in self.study.conclusions(subject.case, subject.found)]

    @cached_property
    def tables(self) -> "dict[str, pd.DataFrame]":
        """The tables by the names that they have in JSON: rows of all cases, the case's id first."""
        import pandas as pd

        tables = {}
        for table in self.study.tables:
            rows = [
                {**({"case_id": subject.case.case_id} if subject.case else {}), **row}
                for subject in self._subjects
                for row in records(table.columns_of(subject.found), table.rows(subject.found))
            ]
            if table.key:
                tables[table.key] = pd.DataFrame(rows)
        return tables

    @property
    def frame(self) -> "pd.DataFrame":
        """The first table: the rows that `--format csv` prints."""
        return next(iter(self.tables.values()))

    def plot(self) -> Plot | None:
        """Return the charts that a report has of this, which a notebook shows; None where it has none."""
        charts, datasets, _ = drawn(self._subjects, [""] * len(self._subjects), *self.study.charts)
        return charts_in_one(charts, datasets) if charts else None

    def to_dict(self) -> dict[str, Any]:
        """Return what `--format json` prints, None for undefined numbers."""
        plain: dict[str, Any] = finite(self._document().data())
        return plain

    def lines(self) -> "Iterator[Text]":
        """Return the statements and tables, as the verb prints them."""
        from rich.text import Text

        document = self._document()
        yield from document_lines(document.sections(), document.missing, WIDTH)
        for code in document.code:
            yield from map(Text, ["", f"  {code.title}", *indent(code.text, "    ").splitlines()])

    def _document(self) -> Document:
        return studies.document(self.study, self.stored, list(self.stored.cases))

    @cached_property
    def _subjects(self) -> list[studies.Subject[Any]]:
        return studies.subjects_of(self.study, self.stored)
