"""Items of a made-up part: what can come of one."""

import os
import time
from pathlib import Path

from benchmarks.device.running import Found, Given, NotHereError


def passes(given: Given, **asked: str) -> Found:
    print("looked")
    (given.folder / "runs" / "a.jsonl").write_text("{}")
    return Found(True, f"{given.device}, {'quick' if given.quick else 'whole'}, {asked}", ("a", "b"), [["1|2", "3"]])


def finds(given: Given) -> Found:
    return Found(False, "2 differ", ("what",), [["this"], ["that"]])


def raises(given: Given) -> Found:
    raise ValueError("no such\nthing")


def is_absent(given: Given) -> Found:
    raise NotHereError("there is no cuda here")


def crashes(given: Given) -> Found:
    print("about to", flush=True)
    os.abort()


def hangs(given: Given) -> Found:
    print("waiting", flush=True)
    if os.fork() == 0:  # what it started is to end with it
        Path(given.folder, "child").write_text(str(os.getpid()))
    time.sleep(60)
    return Found(True, "")
