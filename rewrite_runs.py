"""Drop from every stored run what records no longer have: the heap of its settings, the page faults of its memory."""

import gzip
import re
import subprocess
from pathlib import Path

HEADER, MEMORY = b'{"header":', b'{"memory":'
GONE = {HEADER: re.compile(rb',"heap":"kept"'), MEMORY: re.compile(rb',"faults":(?:null|[0-9.e+]+)')}


def main() -> None:
    """Rewrite the run files that git tracks, and print what was dropped of each."""
    listed = subprocess.run(["git", "ls-files", "results", "tests"], capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if not name.endswith((".jsonl", ".jsonl.gz")):
            continue
        path = Path(name)
        packed = name.endswith(".gz")
        before = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        lines, counts = [], dict.fromkeys(GONE, 0)
        for line in before.splitlines(keepends=True):
            kind = next((kind for kind in GONE if line.startswith(kind)), None)
            kept, dropped = GONE[kind].subn(b"", line) if kind is not None else (line, 0)
            counts[kind or HEADER] += dropped
            lines.append(kept)
        if any(counts.values()):
            after = b"".join(lines)
            path.write_bytes(gzip.compress(after, mtime=0) if packed else after)
            print(f"{name}: heap {counts[HEADER]}, faults {counts[MEMORY]}")


if __name__ == "__main__":
    main()
