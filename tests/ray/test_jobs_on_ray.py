"""`quire run --ray`: replicas as actors of a real cluster of three nodes on this machine."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.errors import InvalidOption
from tests.jobs.driving import (
    SAMPLED,
    is_alive,
    journal_bytes,
    run_command,
    started,
    undisturbed,
    wait_until,
    write_rows,
)
from tests.jobs.test_supervisor import make_job

pytest.importorskip("ray", reason="Ray is not installed: pip install 'quire[ray]'")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head and two nodes."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def engines() -> list[int]:
    """The engines' processes, wherever their actors are."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"quire.jobs.child" in words and os.fsencode("--board") in words:
                found.append(int(entry.name))
    return found


def test_a_job_on_three_nodes_survives_the_death_of_an_actor_and_a_node(
    tmp_path: Path, cluster: Any, long_mode: bool
) -> None:
    rows, kills, rng = (2000, 20, random.Random(3)) if long_mode else (300, 1, random.Random(3))
    source = write_rows(tmp_path / "in.jsonl", rows)
    calm, output = undisturbed(tmp_path, source), tmp_path / "out.jsonl"
    job_dir = tmp_path / "out.jsonl.quire"
    before = set(engines())
    arguments = run_command(
        source, output, *SAMPLED, "--ray", cluster.address, "--replicas", 3,
        model="fake:delay=0.05:rows=8",
    )  # fmt: skip
    with started(arguments) as process:
        for round in range(kills):
            size = journal_bytes(job_dir)
            assert wait_until(lambda: journal_bytes(job_dir) > size or process.poll() is not None)  # noqa: B023
            time.sleep(rng.uniform(0, 0.2))
            mine = [pid for pid in engines() if pid not in before]
            if mine:
                os.kill(rng.choice(mine), signal.SIGKILL)
            if round % 4 == 0:
                node = cluster.list_all_nodes()[-1]
                cluster.remove_node(node, allow_graceful=False)
                cluster.add_node(num_cpus=1)
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
    assert output.read_bytes() == calm
    assert wait_until(lambda: not [p for p in engines() if p not in before and is_alive(p)], 10)


def test_no_cluster_and_clients_are_refused_before_any_work(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 2)
    for address, words in (("127.0.0.1:1", "no Ray cluster"), ("ray://127.0.0.1:1", "HOST:PORT")):
        with pytest.raises(InvalidOption, match=words):
            make_job(source, tmp_path / "out.jsonl", ray=address).run(progress=False)
    with pytest.raises(InvalidOption, match="--replicas instead"):
        make_job(source, tmp_path / "out.jsonl", ray="auto", gpus="0").run(progress=False)
    assert not (tmp_path / "out.jsonl.quire").exists()
