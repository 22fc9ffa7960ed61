"""Takes away what Python on macOS lacks: on PYTHONPATH, for a process and all that it starts.

It stands for a system that is not at hand, and is no proof: what macOS does otherwise under the
same name (killpg of what has ended aside) is not here, nor are its compiler and its torch.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import socket
from collections.abc import Callable
from typing import Any

_LACKING = {
    os: "eventfd fdatasync memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate "
    "sched_getaffinity sched_setaffinity waitid copy_file_range",
    socket: "SOCK_SEQPACKET SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED MSG_NOSIGNAL",
}
_NOWHERE = ("/proc", "/sys", "/dev/shm")


def _hidden(call: Callable[..., Any]) -> Callable[..., Any]:
    def made(path: Any, *given: Any, **more: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(_NOWHERE):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return call(path, *given, **more)

    return made


def _killpg(group: int, number: int, killpg: Callable[[int, int], None] = os.killpg) -> None:
    """Where nothing of the group is alive, macOS says that it may not be done."""
    try:
        killpg(group, number)
    except ProcessLookupError:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from None


for _module, _names in _LACKING.items():
    for _name in _names.split():
        if hasattr(_module, _name):
            delattr(_module, _name)
for _name in ("stat", "lstat", "open", "listdir", "scandir", "access", "readlink"):
    setattr(os, _name, _hidden(getattr(os, _name)))
vars(builtins)["open"] = vars(io)["open"] = _hidden(io.open)
os.killpg = _killpg
