"""The batches that fit and the fastest of them, on the page: a table of all networks, then each by itself."""

from collections.abc import Sequence
from itertools import groupby

from ampbench.base.units import UNDEFINED, format_bytes, format_count, format_ratio, format_whole
from ampbench.instruments.batch.findings import Searched, Searches, batches_said, searches_of
from ampbench.instruments.batch.records import BatchPoint
from ampbench.instruments.batch.show import batches_section
from ampbench.present.page import Held, Overview, Part, Told, detail_of, sentences_of, told_part


def part(held: Held[Sequence[BatchPoint]]) -> Part | None:
    """Return the networks whose batches were searched, each told of with its precisions beside one another."""
    found = _tables(held.told)
    if not (found or held.untold):
        return None
    return told_part(
        found,
        id="batch",
        title="Batches",
        said=held.strangers_said("Searched"),
        detail=lambda one: detail_of(one.name, batches_section(one.found, everything=True), ["Batches tried"]),
        sentences=lambda one: sentences_of(batches_section(one.found)),
        finding=lambda one: next(iter(batches_said(one.found)), ""),
        overview=_overview(found),
        untold=held.untold,
    )


def _tables(told: Sequence[Told[Sequence[BatchPoint]]]) -> list[Told[Searches]]:
    """Return a table for each network, phase and device of a run; it is called as its cases are, without precision."""
    tables: list[Told[Searches]] = []
    for _, every in groupby(told, key=lambda one: one.run.header.run):
        cases = list(every)
        for searches in searches_of(cases[0].run, [one.case.case_id for one in cases]):
            first = next(one for one in cases if one.case == searches.case)
            own = {first.case.precision, f"in-{first.case.input_dtype}"}
            name = " ".join(word for word in first.name.split() if word not in own)
            tables.append(Told(number=len(tables), name=name, case=first.case, run=first.run, found=searches))
    return tables


def _overview(found: Sequence[Told[Searches]]) -> Overview:
    return Overview(
        caption="The largest batch that fits and the best throughput, beside fp32's",
        headers=["precision", "largest", "takes", "of fp32's", "fastest", "items/s", "speed"],
        rows=[(one.name, _cells(row)) for one in found for row in one.found.rows],
        numbers={"largest", "takes", "of fp32's", "fastest", "items/s", "speed"},
    )


def _cells(row: Searched) -> list[str]:
    largest, best, times = row.found.largest, row.found.best, row.speedup
    return [
        row.case.precision,
        format_whole(largest.batch) if largest else UNDEFINED,
        format_bytes(largest.peak_bytes) if largest else UNDEFINED,
        format_ratio(row.largest_ratio),
        format_whole(best.batch) if best else UNDEFINED,
        format_count(best.value) if best else UNDEFINED,
        format_ratio(times.value) if times else UNDEFINED,
    ]
