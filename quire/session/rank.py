"""A rank: a process that computes its share of every layer, started with `python -m`.

It ends when it is killed, or when the engine's process has ended. That is watched from the first
moment: the imports that follow, such as torch, take seconds, so they come later.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback

from quire.executor.cpu.spinning import short_spins

_MOST_TEXT = 2000  # characters of an error that are sent


def main() -> None:
    rank, size, end, lifeline, board_file, ring_file = map(int, sys.argv[1:7])
    threading.Thread(target=_leave_at_end, args=(lifeline,), daemon=True).start()
    with short_spins():
        from quire.session.rank_process import RankJob, RankProcess
    from quire.executor.plain_data import from_json, to_json
    from quire.executor.ranks.board import Board
    from quire.executor.ranks.wire import Channel, Kind, Ring

    board = Board(board_file, size)
    channel = Channel(socket.socket(fileno=end), Ring(ring_file))
    try:
        first = channel.receive()
        if first is None:
            return
        rank_process = RankProcess(RankJob(**from_json(first.data)), board)
        channel.send(Kind.STARTED, first.number, rank_process.start())
        while (message := channel.receive()) is not None:
            channel.send(Kind.DONE, message.number, rank_process.do(message))
    except BaseException as error:  # every error must reach the engine's process
        traceback.print_exc()
        what = {"type": type(error).__name__, "text": str(error)[:_MOST_TEXT]}
        channel.send(Kind.ERROR, 0, to_json({**what, "at": time.monotonic()}))
    sys.stderr.flush()
    os._exit(1)  # without exit handlers of libraries, which would wait for ranks that are gone


def _leave_at_end(lifeline: int) -> None:
    """Wait until the engine's process has ended, then exit at once."""
    while os.read(lifeline, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
