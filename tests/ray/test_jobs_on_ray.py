"""`quire run --ray`: replicas as actors of a real cluster of three nodes on this machine."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quire.errors import InvalidOption
from tests.jobs.driving import (
    SAMPLED,
    children_of,
    is_alive,
    journal_bytes,
    records,
    run_command,
    started,
    undisturbed,
    wait_until,
    write_rows,
)
from tests.jobs.test_supervisor import make_job

pytest.importorskip("ray", reason="Ray is not installed: pip install 'quire-llm[ray]'")
DEATHS = 20
MARK = "QUIRE_TESTED_BY"
NOTICED = 40.0  # seconds, and then those that starting another engine takes


@pytest.fixture
def cluster(marked: None) -> Iterator[Any]:
    """A head and two nodes."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is started below this process is known by it: other clusters may be tested here."""
    monkeypatch.setenv(MARK, str(os.getpid()))


def engines() -> list[int]:
    """The engines' processes, wherever their actors are."""
    found, mark = [], f"{MARK}={os.getpid()}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"quire.jobs.child" in words and b"--board" in words:
                environment = (entry / "environ").read_bytes().split(b"\0")
                started_by_ray = any(one.startswith(b"RAY_JOB_ID=") for one in environment)
                if mark in environment and started_by_ray and is_alive(int(entry.name)):
                    found.append(int(entry.name))
    return found


def on_ray(source: Path, output: Path, address: str, delay: float = 0.05) -> list[str]:
    cluster = ("--ray", address, "--replicas", 3)
    return run_command(source, output, *SAMPLED, *cluster, model=f"fake:delay={delay}:rows=8")


def processes_below(pid: int) -> list[int]:
    """A process and all that it started, with all that those started."""
    return [pid, *(found for child in children_of(pid) for found in processes_below(child))]


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def test_a_job_on_three_nodes_survives_the_death_of_an_actor_and_a_node(
    tmp_path: Path, cluster: Any, long_mode: bool
) -> None:
    rows, deaths, rng = (
        (2000, DEATHS, random.Random(3)) if long_mode else (300, 1, random.Random(3))
    )
    source = write_rows(tmp_path / "in.jsonl", rows)
    calm, output = undisturbed(tmp_path, source), tmp_path / "out.jsonl"
    job_dir, killed, known = tmp_path / "out.jsonl.quire", 0, set[int]()
    while killed < deaths:  # a job that was through is begun again
        output.unlink(missing_ok=True)
        shutil.rmtree(job_dir, ignore_errors=True)
        command = on_ray(source, output, cluster.address, 0.2 if long_mode else 0.05)
        with started(command) as process:
            began = time.monotonic()
            assert wait_until(lambda: bool(engines()) or process.poll() is not None)  # noqa: B023
            starting = time.monotonic() - began  # minutes, where the machine is full
            while killed < deaths and process.poll() is None:
                size = journal_bytes(job_dir)
                wait_until(lambda: journal_bytes(job_dir) > size or process.poll() is not None)  # noqa: B023
                time.sleep(rng.uniform(0, 0.2))
                mine = engines()
                if process.poll() is None and mine:
                    # Not the same one while it loads, again and again: it would be given up.
                    os.kill(
                        rng.choice([pid for pid in mine if pid in known] or mine), signal.SIGKILL
                    )
                    known.update(mine)
                    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
                    cluster.add_node(num_cpus=1)
                    killed += 1
                    seen = time.monotonic()
                    assert wait_until(
                        lambda: (
                            len(set(engines()) - set(mine)) > 0  # noqa: B023
                            or process.poll() is not None
                        ),  # noqa: B023
                        NOTICED + 20.0 + 2 * starting,
                    )
                    print(f"{killed}: another engine after {time.monotonic() - seen:.1f} s")
            _, said = process.communicate(timeout=600)
            assert process.returncode == 0, said
        assert output.read_bytes() == calm
    assert wait_until(lambda: not engines(), 10)


@pytest.mark.long
def test_what_a_node_says_that_slept_too_long_is_dropped(tmp_path: Path, cluster: Any) -> None:
    """All of it sleeps: Ray's own process, the actor and the engine. Others do its rows meanwhile,
    and none is there twice when it wakes."""
    source = write_rows(tmp_path / "in.jsonl", 1500)
    calm, output = undisturbed(tmp_path, source), tmp_path / "out.jsonl"
    job_dir = tmp_path / "out.jsonl.quire"
    with started(on_ray(source, output, cluster.address, 0.2)) as process:
        assert wait_until(lambda: len(engines()) == 3)
        size = journal_bytes(job_dir)
        assert wait_until(lambda: journal_bytes(job_dir) > size + 10_000)
        asleep = processes_below(raylet_of(cluster.list_all_nodes()[-1]))
        engine = [pid for pid in engines() if pid in asleep]
        assert len(engine) == 1
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(90)
        assert process.poll() is None, "the job was through before the node woke"
        for pid in reversed(asleep):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert wait_until(lambda: not is_alive(engine[0]), 10)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert output.read_bytes() == calm
    keys = [record["key"] for record in records(job_dir)]
    assert len(keys) == len(set(keys)) == 1500
    assert wait_until(lambda: not engines(), 10)


def test_no_cluster_and_clients_are_refused_before_any_work(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 2)
    for address, words in (
        ("127.0.0.1:1", "no Ray cluster"),
        ("127.0.0.1:99999", "no Ray cluster"),
        ("ray://127.0.0.1:1", "HOST:PORT"),
        ("head", "HOST:PORT"),
    ):
        with pytest.raises(InvalidOption, match=words):
            make_job(source, tmp_path / "out.jsonl", ray=address).run(progress=False)
    with pytest.raises(InvalidOption, match="--replicas instead"):
        make_job(source, tmp_path / "out.jsonl", ray="auto", gpus="0").run(progress=False)
    assert not (tmp_path / "out.jsonl.quire").exists()


@pytest.mark.long
@pytest.mark.parametrize("who", ["driver", "head"])
def test_after_the_driver_or_the_head_died_the_same_command_goes_on(
    who: str, tmp_path: Path
) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 600), tmp_path / "out.jsonl"
    calm, job_dir = undisturbed(tmp_path, source), tmp_path / "out.jsonl.quire"
    rng, deaths, whole = random.Random(5), 0, 0
    cluster: Any = None
    while deaths < DEATHS or not output.exists():
        if output.exists():  # a job that was through is begun again
            assert output.read_bytes() == calm
            output.unlink()
            shutil.rmtree(job_dir)
            whole += 1
        cluster = cluster or small_cluster()
        size = journal_bytes(job_dir) if job_dir.exists() else 0
        with started(on_ray(source, output, cluster.address, 0.2)) as process:
            assert wait_until(
                lambda: journal_bytes(job_dir) > size or process.poll() is not None  # noqa: B023
            )
            time.sleep(rng.uniform(0, 0.3))
            is_killed = deaths < DEATHS and process.poll() is None
            seen = time.monotonic()
            if is_killed and who == "driver":
                process.kill()
            elif is_killed:
                cluster.remove_node(cluster.head_node, allow_graceful=False)
            deaths += is_killed
            _, said = process.communicate(timeout=300)
            codes = {"driver": (-signal.SIGKILL, 0), "head": (75, 0)}
            assert process.returncode in codes[who], said
        if is_killed and who == "head":
            print(f"{deaths}: left with {process.returncode} after {time.monotonic() - seen:.1f} s")
            cluster.shutdown()
            cluster = None
        assert wait_until(lambda: not engines(), 30)
    if cluster is not None:
        cluster.shutdown()
    assert output.read_bytes() == calm
    print(f"{deaths} deaths of the {who}, {whole + 1} jobs whole")


def small_cluster() -> Any:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=2)
    return made
