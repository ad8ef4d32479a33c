"""What is to be said of the runs beside their numbers: what no reader may miss, and the rest."""

from collections.abc import Iterable, Sequence

from ampbench import frames, notes
from ampbench.comparing import sentences
from ampbench.report.machines import Machine
from ampbench.report.material import Material

NAMED = 3
"""So many runs of which the same is to be said are named."""


def warnings(material: Material) -> list[str]:
    """Return what no reader may miss, each once and, where there are several runs, with those that it is said of."""
    several = len(material.shown) > 1
    warned: list[str] = []
    for shown in material.shown:
        which = f"{shown.name}: " if several else ""
        if shown.comparison is not None:
            warned += [f"{which}{one}" for one in sentences.warnings(shown.comparison)]
        elif not shown.stored.complete:
            warned.append(f"run {shown.stored.header.run} is not complete: {shown.stored.ending}")
    sides = [(shown.name if several else "candidate", shown.notes) for shown in material.shown]
    if material.baseline is not None:
        sides.insert(0, ("baseline", _of_baseline(material)))
    said: dict[str, list[str]] = {}
    for side, found in sides:
        for note in found:
            if note.warning:
                said.setdefault(note.text, []).append(side)
    warned += [text if len(of) == len(sides) else f"{_listed(of)}: {text}" for text, of in said.items()]
    return list(dict.fromkeys([*warned, *material.remarks]))


def remarks(material: Material, found: Sequence[Machine]) -> list[str]:
    """Return what else is to be said: of one run all of it; where there are more, for which device they speak.

    `found` are the machines of the runs.
    """
    if len(material.shown) == 1 and not material.comparisons:
        return [note.text for note in material.shown[0].notes if not note.warning]
    statements = [machine.statement for machine in found if machine.statement]
    known = {note.text for shown in material.shown for note in shown.notes if note.warning}
    return [one for one in statements if one not in known] if len(statements) == 1 else []


def _of_baseline(material: Material) -> list[notes.Note]:
    """Return the notes of the baseline, as far as its cases are compared."""
    baseline = material.baseline
    assert baseline is not None
    compared = {one for shown in material.shown for one in shown.partners.values()}
    rows = [row for row in frames.plain_rows(frames.run_frame(baseline)) if row["case_id"] in compared]
    return notes.statements(baseline, rows)


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - NAMED:,} more" if len(known) > NAMED else ""
    return f"{', '.join(known[:NAMED])}{more}"
