"""Writing files that a user asked for: all of them or none, and never half of one."""

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from glob import escape
from pathlib import Path

from ampbench.errors import StoreError


def check_writable(path: Path) -> None:
    """Raise `StoreError` where a file at `path` could not be written, before the work that is to fill it."""
    folder = path.resolve().parent
    if path.is_dir():
        problem = os.strerror(errno.EISDIR)
    elif not folder.is_dir():
        problem = os.strerror(errno.ENOENT)
    elif not os.access(path if path.exists() and not path.is_file() else folder, os.W_OK):
        problem = os.strerror(errno.EACCES)
    else:
        return
    raise StoreError(f"cannot write {path}: {problem}; choose another -o")


ABANDONED_SECONDS = 60.0
"""A file under way that is older than this, of a process that is gone, was left behind: no writing takes as long."""


def write_files(
    files: Mapping[Path, str | bytes], hint: str = "nothing was written, choose another -o", *, links: bool = True
) -> None:
    """Write all files or none: each under another name first, then renamed.

    What writers that were killed left beside a file is removed. A file that is a link is written where it leads, but
    without `links`, which is for names that nobody typed, refused. Raises `StoreError` where that cannot be done;
    `hint` ends its message.
    """
    written: list[tuple[Path, Path]] = []
    path = Path()
    try:
        for path, content in files.items():
            data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.exists() and not path.is_file():
                path.write_bytes(data)  # a pipe or a device, which renaming would replace
                continue
            if path.is_symlink() and not links:
                leads = os.readlink(path)  # noqa: PTH115 - as it is written, not resolved
                raise StoreError(f"cannot write {path}: it is a link to {leads}; remove it, or {hint}")
            target = path.resolve()  # renaming onto a link would replace the link
            _remove_abandoned(target)
            temporary = target.with_name(f".{target.name}.{os.getpid()}")
            written.append((temporary, target))
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for temporary, target in written:
            temporary.replace(target)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {hint}") from None
    finally:
        for temporary, _ in written:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _remove_abandoned(target: Path) -> None:
    """Remove what writers of `target` that were killed have left beside it."""
    for beside in target.parent.glob(f".{escape(target.name)}.*"):
        writer = beside.name.rpartition(".")[2]
        with contextlib.suppress(OSError):
            old = time.time() - beside.stat().st_mtime > ABANDONED_SECONDS
            if writer.isdecimal() and old and not Path("/proc", writer).exists():
                beside.unlink()
