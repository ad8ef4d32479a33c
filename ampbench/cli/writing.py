"""Writing files that a user asked for: all of them or none, and never half of one."""

import contextlib
import errno
import os
from collections.abc import Mapping
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


def write_files(files: Mapping[Path, str | bytes], hint: str = "nothing was written, choose another -o") -> None:
    """Write all files or none: each under another name first, then renamed.

    Raises `StoreError` where that cannot be done; `hint` ends its message.
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
            target = path.resolve()  # renaming onto a link would replace the link
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
