"""What is not as it was: the cells in which two sets of tables differ."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Cells = dict[str, Any]
MISSING = "(missing)"
NEAR = 1e-12
"""By what share a number may be off that is neither a count nor an error."""
_ERRORS = re.compile(r"^(output|sample|kl|loss|grad|param|update|argmax)_|rel_l2|^sum$|^crc32$")
_MADE_OF_ERRORS = {"output_sqnr_db", "argmax_bound"}


@dataclass(frozen=True)
class Difference:
    """A cell that differs: of which data and table, its row's key and its column, what it was and what it is.

    A row that only one side has differs in each of its cells. Of rows in another order, the column is "order".
    """

    name: str
    table: str
    key: str
    column: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.table}: {self.key}: {self.column}: {self.before!r} → {self.after!r}"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield every cell that differs between two sets of tables by the name of their data."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            present = [name in before, name in after]
            yield Difference(name, "", "", "data", *(("there" if each else MISSING) for each in present))
            continue
        for table in sorted(before[name].keys() | after[name].keys()):
            old, new = (_by_key(side[name].get(table, ())) for side in (before, after))
            for key in old.keys() | new.keys() if old.keys() != new.keys() else old:
                yield from _of_row(name, table, key, old.get(key, {}), new.get(key, {}))
            orders = [[key for key in side if key in old and key in new] for side in (old, new)]
            if orders[0] != orders[1]:
                yield Difference(name, table, "", "order", *map(len, orders))


def _by_key(rows: Any) -> dict[str, Cells]:
    """Return the cells of rows by their keys, "KEY #2" for the second row of a key."""
    seen: Counter[str] = Counter()
    found = {}
    for key, cells in rows:
        seen[key] += 1
        found[key if seen[key] == 1 else f"{key} #{seen[key]}"] = {"(row)": True} | cells
    return found


def _of_row(name: str, table: str, key: str, old: Cells, new: Cells) -> Iterator[Difference]:
    for column in dict.fromkeys([*old, *new]):
        values = old.get(column, MISSING), new.get(column, MISSING)
        if not _same(column, *values):
            yield Difference(name, table, key, column, *values)


def _same(column: str, old: Any, new: Any) -> bool:
    if type(old) is type(new) and old == new:
        return True
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (old, new))
    if not numbers:
        return type(old) is type(new) and bool(old == new)
    if old == new or (math.isnan(old) and math.isnan(new)):
        return True
    exact = isinstance(old, int) and isinstance(new, int)
    if exact or (_ERRORS.search(column) and column not in _MADE_OF_ERRORS):
        return False
    return math.isclose(old, new, rel_tol=NEAR, abs_tol=0.0)
