"""Captures beside whatever else a process does with its GPU."""

from __future__ import annotations

import threading

import pytest
import torch

from quire.backends.capturing import capturing

pytestmark = pytest.mark.gpu
STREAMS = 32  # that torch hands out in turn


def test_captures_end_well_while_another_thread_uses_every_stream_of_torch() -> None:
    ended, wrong = threading.Event(), []
    numbers = torch.arange(1000, device="cuda")

    def others_work() -> None:
        streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        try:
            while not ended.is_set():
                for stream in streams:
                    with torch.cuda.stream(stream):
                        copied = torch.ones(100, pin_memory=True).to("cuda", non_blocking=True)
                    torch.cuda.current_stream().wait_stream(stream)
                    copied.record_stream(torch.cuda.current_stream())
        except RuntimeError as error:
            wrong.append(error)

    other = threading.Thread(target=others_work)
    other.start()
    try:
        for added in range(2 * STREAMS):
            graph = torch.cuda.CUDAGraph()
            with capturing(graph):
                made = numbers + added
            graph.replay()
            assert torch.equal(made, numbers + added)
    finally:
        ended.set()
        other.join()
    assert not wrong


def test_a_capture_that_fails_says_why_and_leaves_nothing_behind() -> None:
    numbers = torch.arange(1000, device="cuda")
    refused = pytest.raises(RuntimeError, match="not permitted when stream is capturing")
    with refused, capturing(torch.cuda.CUDAGraph()):
        numbers.sum().item()
    torch.randn(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        made = numbers * 2
    graph.replay()
    assert torch.equal(made, numbers * 2)
