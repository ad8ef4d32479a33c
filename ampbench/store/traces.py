"""The traces of a run file: long lines, decoded and checked when first asked for."""

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from ampbench.garbage import no_garbage_collection
from ampbench.records.casts import CastPass

TRACE = b'{"casts":'
"""How the line of a trace begins."""
_BEGINNING = re.compile(rb'\{"casts":\{"case_id":("(?:[^"\\]|\\.)*"),')
_END = b"}}\n"


class StoredTraces(Mapping[str, CastPass]):
    """The last trace of each case, by case id, in the order of the file; a line is decoded at its first access.

    Which cases there are costs nothing. A damaged line raises `StoreError`, with the file and the line's number, when
    its trace is asked for.
    """

    __slots__ = ("_decode", "_lines", "_traces")

    def __init__(self, decode: Callable[[bytes, int], CastPass]):
        self._decode = decode
        self._lines: dict[str, tuple[bytes, int]] = {}
        self._traces: dict[str, CastPass | None] = {}

    def keep(self, case_id: str, line: bytes, number: int) -> None:
        """Keep `line`, that of a trace of the case, with its `number` in the file, in place of an earlier one."""
        self._lines[case_id] = line, number
        self._traces[case_id] = None

    def __getitem__(self, case_id: str) -> CastPass:
        found = self._traces[case_id]
        if found is None:
            with no_garbage_collection():
                found = self._traces[case_id] = self._decode(*self._lines[case_id])
            del self._lines[case_id]
        return found

    def __contains__(self, case_id: object) -> bool:
        return case_id in self._traces

    def __iter__(self) -> Iterator[str]:
        return iter(self._traces)

    def __len__(self) -> int:
        return len(self._traces)

    def __repr__(self) -> str:
        return f"<traces of {', '.join(self._traces) or 'no case'}>"


def traced_case(line: bytes) -> str | None:
    """Return the id of the case whose trace `line` begins and ends as; None: only decoding it can tell what it is."""
    begins = _BEGINNING.match(line)
    if begins is None or not line.endswith(_END):
        return None
    try:
        return msgspec.json.decode(begins[1], type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
