"""Messages between the engine's process and ranks: packets on a socket, large data in shared
memory.

Data for all ranks is written once, into a ring in a memfd, and each rank gets a packet that says
where it is. Data that does not fit is in a memfd of its own, which is sent with the packet. Nothing
is in /dev/shm, which is small in containers, and nothing has a name that could be left behind.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from quire.base.system import write_all
from quire.errors import EngineError

SLOTS, SLOT_BYTES = 8, 256 << 10
INLINE_BYTES = 32 << 10  # well below the largest packet of a socket
_header = struct.Struct("<BBQQI")  # kind, place, number, size, checksum
_INLINE, _IN_RING, _IN_MEMFD = range(3)


class Kind(IntEnum):
    """The kind of a message: first those to a rank, then those from one."""

    JOB, PLAN, RESET, SLEEP, WAKE, ADAPTER = range(6)
    STARTED, DONE, ERROR = range(10, 13)


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    number: int  # set by the sender; answers repeat it
    data: bytes
    checksum: int


class Ring:
    """SLOTS slots of SLOT_BYTES, written by the engine's process and read by ranks."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map = mmap.mmap(file, SLOTS * SLOT_BYTES)

    @classmethod
    def create(cls) -> Ring:
        file = os.memfd_create("quire-plans")
        os.ftruncate(file, SLOTS * SLOT_BYTES)
        return cls(file)

    def put(self, number: int, data: bytes) -> None:
        first = number % SLOTS * SLOT_BYTES
        self._map[first : first + len(data)] = data

    def get(self, number: int, size: int) -> bytes:
        first = number % SLOTS * SLOT_BYTES
        return self._map[first : first + size]

    def close(self) -> None:
        self._map.close()
        os.close(self.file)


class Channel:
    """One end of a socket between the engine's process and a rank."""

    def __init__(self, end: socket.socket, ring: Ring) -> None:
        self.end, self._ring = end, ring

    def fileno(self) -> int:
        return self.end.fileno()

    def send(self, kind: Kind, number: int, data: bytes = b"") -> None:
        broadcast([self], kind, number, data, ring=None)

    def receive(self) -> Message | None:
        """The next message; None if the other end is closed."""
        try:
            packet, files, _, _ = socket.recv_fds(self.end, _header.size + INLINE_BYTES, 1)
        except ConnectionError:
            return None
        if not packet:
            return None
        kind, place, number, size, checksum = _header.unpack_from(packet)
        if place == _INLINE:
            data = packet[_header.size :]
        elif place == _IN_RING:
            data = self._ring.get(number, size)
        else:
            data = _read(files[0], size)
        if len(data) != size or zlib.crc32(data) != checksum:
            raise EngineError(f"message {number} is not what was sent: its checksum differs.")
        return Message(Kind(kind), number, data, checksum)

    def close(self) -> None:
        self.end.close()


def broadcast(
    channels: Sequence[Channel], kind: Kind, number: int, data: bytes, ring: Ring | None
) -> None:
    """Send a message to all channels. OSError (BrokenPipeError) if one is closed."""
    place, files = _INLINE, []
    if len(data) > INLINE_BYTES:
        if ring is not None and len(data) <= SLOT_BYTES:
            place = _IN_RING
            ring.put(number, data)
        else:
            place, files = _IN_MEMFD, [_written(data)]
    packet = _header.pack(kind, place, number, len(data), zlib.crc32(data))
    packet += data if place == _INLINE else b""
    try:
        for channel in channels:
            socket.send_fds(channel.end, [packet], files)
    finally:
        for file in files:
            os.close(file)


def _written(data: bytes) -> int:
    file = os.memfd_create("quire-message")
    write_all(file, data)
    return file


def _read(file: int, size: int) -> bytes:
    try:
        parts, at = [], 0
        while at < size and (part := os.pread(file, size - at, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
    finally:
        os.close(file)
