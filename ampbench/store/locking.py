"""One writer of a run file at a time, and names of files that last."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from ampbench.errors import StoreError

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def lock(path: Path, descriptor: int, advice: str) -> None:
    """Lock the run file at `path`, open as `descriptor`, against other writers until that is closed.

    Raises `StoreError` where another writes it, with the `advice` what to do then, and where the file was replaced
    since it was opened.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"{path} is being written by another ampbench: {advice}") from None
    except OSError as error:
        # some network file systems have no locks; measuring must be possible there, too
        if error.errno not in _NO_LOCKS:
            raise StoreError(f"cannot lock {path}: {error.strerror}") from None
    try:
        replaced = not os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        replaced = True
    if replaced:
        raise StoreError(f"{path} was replaced while it was opened: try again")


def sync_folder(folder: Path) -> None:
    """Make a new file's name as lasting as its contents, where the file system can (some network ones cannot)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
