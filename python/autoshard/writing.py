"""Files are written all at once or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from autoshard.errors import OutputError


def write_file(path: str, data: bytes) -> None:
    """Write a file all at once or not at all.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        _write_atomically(Path(path), data)
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror}", path) from error


def _write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path``, keeping its permissions; a device or pipe is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as new:
        try:
            new.write(data)
            new.flush()
            os.fchmod(new.fileno(), _mode_for(path))
            os.replace(new.name, path)
        except BaseException:
            os.unlink(new.name)
            raise


def _mode_for(path: Path) -> int:
    """The permissions of the file, or those that a new file gets."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
