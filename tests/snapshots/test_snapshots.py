"""How a run, a comparison and a page of small stored runs read; `RENEW=1 pytest tests/snapshots` writes it anew."""

import contextlib
import html
import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from ampbench.cli.main import main

HERE = Path(__file__).parent
RUNS = HERE.parent / "net" / "runs"
SCREENS = {"run": "show plain", "compare": "compare plain later", "page": "report plain -o page.html"}
_LONG = re.compile(r"(?<![\w.])\d+\.\d{9,}(?:e[+-]\d+)?(?!\w)")
"""A number with more digits than two processors agree on."""


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_reads_as_it_did(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FORCE_COLOR", "NO_COLOR", "LINES", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    ids = {}
    for run in ("plain", "later"):
        ids[run] = json.loads((RUNS / f"{run}.jsonl").read_text(encoding="utf-8").splitlines()[0])["header"]["run"]
        file = tmp_path / "results" / "runs" / f"{ids[run]}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RUNS / f"{run}.jsonl", file)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([ids.get(word, word) for word in SCREENS[name].split()]) == 0
    text = _text(Path("page.html").read_text(encoding="utf-8")) if name == "page" else printed.getvalue()
    text = _LONG.sub(lambda number: f"{float(number[0]):.12g}", text)
    kept = HERE / f"{name}.txt"
    if os.environ.get("RENEW"):
        kept.write_text(text, encoding="utf-8")
    assert text == kept.read_text(encoding="utf-8")


def _text(page: str) -> str:
    """Return the text of a page, a block on each line."""
    body = " ".join(page[page.index("<main") : page.index("</main>")].split())
    body = re.sub(r"<(script|style|svg)\b.*?</\1>", "", body, flags=re.DOTALL)
    body = re.sub(r"</th>|(?=<td)", " | ", body)
    body = re.sub(
        r"<(?:section|h\d|p|div|table|caption|tr|ul|ol|li|dt|dd|summary|figure|figcaption|pre)\b", r"\n\g<0>", body
    )
    lines = (" ".join(html.unescape(re.sub(r"<[^>]*>", "", line)).split()) for line in body.split("\n"))
    return "".join(f"{line}\n" for line in lines if line)
