"""A session at a command line with an ampbench that has more studies, in a process of its own.

Takes commands as JSON and gives, as JSON, the exit code and what was printed of each. A command that begins with
"interrupted" ends by Ctrl-C once the first piece of its work is stored.
"""

import contextlib
import io
import json
import sys
from typing import Any

from ampbench.cli.main import main
from ampbench.records.kinds import LINES, line_of
from ampbench.store import RunWriter

_append = RunWriter.append


def _interrupted_once_stored(self: RunWriter, *records: Any) -> None:
    _append(self, *records)
    with contextlib.suppress(KeyError):
        if any(line_of(type(one)) in LINES for one in records):
            RunWriter.append = _append  # type: ignore[method-assign]
            raise KeyboardInterrupt


def run(command: list[str]) -> dict[str, Any]:
    if command[0] == "interrupted":
        RunWriter.append = _interrupted_once_stored  # type: ignore[method-assign]
        command = command[1:]
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["ampbench", *command]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    json.dump([run(command) for command in json.loads(sys.argv[1])], sys.stdout)
