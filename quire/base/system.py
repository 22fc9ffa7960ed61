"""System calls that only Linux has, each with its replacement for other systems."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_MEMINFO, _STATM = Path("/proc/meminfo"), Path("/proc/self/statm")
_VM_STAT = Path("/usr/bin/vm_stat")  # of macOS
_PIECE = 1 << 16


def sync(file: int) -> None:
    """Make a file or a folder durable. On macOS fsync leaves data in the drive's memory, and
    F_FULLFSYNC writes it; some of its file systems lack that call."""
    if full := getattr(fcntl, "F_FULLFSYNC", None):
        try:
            fcntl.fcntl(file, full)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(file)


def sync_data(file: int) -> None:
    """Make a file's bytes and length durable, without the rest where the system can do so."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        sync(file)


def write_all(file: int, data: bytes) -> None:
    """Write all bytes, however few the system takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def reserve(file: int, size: int) -> None:
    """Reserve room for `size` bytes in an empty file, or raise OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    at = 0
    while at < size:
        at += os.pwrite(file, bytes(min(_PIECE, size - at)), at)


def free_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say."""
    with suppress(OSError):
        found = re.search(r"^MemAvailable: +(\d+) kB$", _MEMINFO.read_text("ascii"), re.MULTILINE)
        return int(found[1]) << 10 if found else None
    try:
        told = subprocess.run([_VM_STAT], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    page = re.search(r"page size of (\d+) bytes", told.stdout)
    pages = re.findall(r"^Pages (?:free|inactive): +(\d+)\.$", told.stdout, re.MULTILINE)
    return sum(map(int, pages)) * int(page[1]) if page and pages else None


def held_memory() -> int | None:
    """Bytes of this process' address space; None where the system does not say."""
    try:
        pages = _STATM.read_text("ascii").split()[0]
    except OSError:
        return None
    return int(pages) * resource.getpagesize()


def lower_limit(limit: int, wanted: int) -> None:
    """Lower the soft limit to `wanted`, or to the hard limit if that is lower."""
    hard = resource.getrlimit(limit)[1]
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(limit, (soft, hard))


def can_share_with_ranks() -> bool:
    """Whether the system has anonymous shared memory, and can wait for other processes to end."""
    return hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")


def kill_group(leader: int) -> None:
    """Kill a process that has not been waited for, and all processes of its group."""
    # If no process of the group is alive any more, macOS raises PermissionError.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def await_exit(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process to exit; True if it did. Where the system can, it is not reaped, so that
    its id stays valid for `kill_group`."""
    if not hasattr(os, "waitid"):
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode is not None
    deadline = time.monotonic() + seconds
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not (left := os.waitid(os.P_PID, process.pid, look)) and time.monotonic() <= deadline:
        time.sleep(0.005)
    return left is not None
