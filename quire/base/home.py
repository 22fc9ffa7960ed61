"""Where quire keeps what it can fetch or make again, and whether others can put things there.

Code is run from there, so files in a folder that another user may write to are not trusted.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

_MOST_KEPT = 1 << 20  # bytes read of a file of entries
_MOST_LINKS = 40  # followed on the way to a folder; Linux follows as many


def quire_home() -> Path:
    """QUIRE_HOME, else a folder in the user's cache; deletable at any time."""
    if home := os.environ.get("QUIRE_HOME"):
        return Path(home).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "quire"


def read_entries(name: str) -> dict[str, Any]:
    """The entries that earlier processes kept in this file; none if it holds something else, or if
    another user may have written it."""
    try:
        with open_ours(quire_home() / name) as file:
            stored = json.loads(file.read(_MOST_KEPT))
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def add_entry(name: str, key: str, entry: object) -> None:
    """Keep an entry beside the others. Errors are ignored: an entry is cheap to find out again."""
    path = quire_home() / name
    mine = path.with_suffix(f".{os.getpid()}")
    text = json.dumps({**read_entries(name), key: entry})
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine.unlink(missing_ok=True)  # left by a killed process that had our process id
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(mine, flags, 0o600), "w") as file:
            file.write(text)
        mine.replace(path)
    except OSError:
        return


def open_ours(path: Path) -> BinaryIO:
    """Open a regular file that only this user or root can have written; for any other,
    PermissionError. The open file is checked, not its name, which may be changed meanwhile."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(number)
    if stat.S_ISREG(found.st_mode) and (why := _why_not_ours(found)) is None:
        return open(number, "rb")
    os.close(number)
    raise PermissionError(f"{path}: {why if stat.S_ISREG(found.st_mode) else 'no regular file'}")


def why_not_private(folder: Path) -> str | None:
    """Why another user could put a file into this folder, or replace the folder; None if only this
    user and root can. A folder that does not exist yet is judged by its parents."""
    steps = list(_steps_to(Path(os.path.abspath(folder))))
    if len(steps) > _MOST_LINKS * 20:
        return f"{folder} leads through too many links"
    for step in steps:
        try:
            found = os.lstat(step)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{step}: {error.strerror}"
        why = _why_not_ours(found)
        # In a folder like /tmp every user makes files, but only a file's owner can rename it.
        is_shared_safely = bool(found.st_mode & stat.S_ISVTX) and step != steps[-1]
        if why is not None and not (is_shared_safely and _is_trusted(found.st_uid)):
            return f"{step} {why}"
    return None


def _steps_to(path: Path, links: int = 0) -> Iterator[Path]:
    """Every folder on the path, and for each link every folder on the path to its target."""
    for step in (*reversed(path.parents), path):
        yield step
        if links < _MOST_LINKS and step.is_symlink():
            with suppress(OSError):
                target = os.path.normpath(step.parent / os.readlink(step))
                yield from _steps_to(Path(target), links + 1)


def _why_not_ours(found: os.stat_result) -> str | None:
    if not _is_trusted(found.st_uid):
        return f"belongs to another user ({found.st_uid})"
    if stat.S_ISLNK(found.st_mode):  # the mode bits of a link have no effect
        return None
    if found.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
        return f"can be written by group {found.st_gid}"
    return None


def _is_trusted(user: int) -> bool:
    return user in (os.getuid(), 0) or _is_unmapped(user)


def _is_unmapped(user: int) -> bool:
    """Whether this is the id shown for all users of the host, in a container with its own users."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        mapped = Path("/proc/self/uid_map").read_text().split()
    except (OSError, ValueError):
        return False
    return user == overflow and mapped[2:] != ["4294967295"]


def _is_own_group(group: int) -> bool:
    """Whether this is the group that many systems make for each user, without other members."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}
