"""Accounts: whose this process is, for which project, and what a group may do with its files.

A directory with the setgid bit that its group may write is shared on purpose, and Linux passes both
on to directories below. What Cloze writes there is the group's, whatever the umask.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from contextlib import suppress

from cloze.core.errors import UsageError

PROJECT, DEFAULT_PROJECT = "CLOZE_PROJECT", "cloze"
PROJECT_NAME = re.compile(r"[^\W_][\w.-]*")
SHARED = stat.S_ISGID | stat.S_IWGRP
CLONE_FS = 0x200  # of unshare(2): the thread gets a umask and a working directory of its own


def user_name(uid: int | None = None) -> str:
    """Return the name of an account, default this process's; its number if it has none."""
    uid = os.getuid() if uid is None else uid
    with suppress(KeyError):  # `USER` may be that of another account's shell
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def project(named: object = None) -> str:
    """Return the project, a config's, `$CLOZE_PROJECT` or cloze; UsageError: it is no name."""
    origin = PROJECT if named is None else "project"
    name = (os.environ.get(PROJECT) or DEFAULT_PROJECT) if named is None else named
    if not isinstance(name, str) or not PROJECT_NAME.fullmatch(name):
        raise UsageError(
            f"{origin} ({name!r}) must consist of letters, digits, '.', '_' and '-', and begin with"
            f" a letter or a digit; give such a name"
        )
    return name


def owner(path: str | os.PathLike[str]) -> str:
    """Return the name of the account that a local file belongs to; empty: it is gone."""
    with suppress(OSError):
        return user_name(os.stat(path).st_uid)
    return ""


def is_shared(directory: str | os.PathLike[str]) -> bool:
    """Return whether a local directory is a group's on purpose."""
    with suppress(OSError):
        return os.stat(directory).st_mode & SHARED == SHARED
    return False


def share(directory: str | os.PathLike[str]) -> None:
    """Let the group write all that this thread, and what it starts, makes in a shared directory.

    Threads that run already keep their umask: their files may lie elsewhere.
    """
    if is_shared(directory):
        import ctypes

        # where the system lacks it (macOS) or refuses it (containers), the umask is the process's
        with suppress(AttributeError):
            ctypes.CDLL(None).unshare(CLONE_FS)
        os.umask(os.umask(0o077) & ~stat.S_IRWXG)


def open_unlinked(name: str, flags: int, mode: int = 0o666) -> int:
    """Open a file as `open`'s opener does, but none through a link.

    Raises OSError: it is a link, which others may have put there to another file of this account.
    """
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def open_private(name: str, flags: int) -> int:
    """Open as `open_unlinked`; only the owner may read a file that it creates."""
    return open_unlinked(name, flags, 0o600)


def open_record(name: str, flags: int) -> int:
    """Open as `open_private`; in a shared directory the group may read and write the file, too."""
    handle = open_private(name, flags)
    if is_shared(os.path.dirname(name) or "."):
        with suppress(OSError):  # it is another account's, which has done the same
            os.fchmod(handle, 0o660)
    return handle
