"""What stands in for a rank: it sends back what it is sent, adapters and SLOW after SECONDS."""

from __future__ import annotations

import socket
import sys
import time

from quire.executor.ranks.wire import Channel, Kind, Ring

SLOW, SECONDS = b"slow", 1.0


def main() -> None:
    _, _, end, _, _, ring = map(int, sys.argv[1:7])
    channel = Channel(socket.socket(fileno=end), Ring(ring))
    while (message := channel.receive()) is not None:
        is_slow = message.data == SLOW or message.kind is Kind.ADAPTER
        time.sleep(SECONDS if is_slow else 0)
        channel.send(Kind.DONE, message.number, message.data)


if __name__ == "__main__":
    main()
