"""A rank that dies, stops or goes astray ends the engine at once, with its reason, and leaves
nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.adapters.read import AdapterWeights
from quire.base.line_child import import_paths
from quire.config import AdapterOptions
from quire.errors import CorruptModel, EngineError, RankDied
from quire.executor.plain_data import from_json
from quire.executor.ranks import processes
from quire.executor.ranks.executor import RanksExecutor
from quire.executor.ranks.processes import RankProcesses
from quire.executor.ranks.wire import Kind
from quire.session.ranks import MODULE
from quire.step import StepPlan
from quire.steps.codec import encode
from quire.steps.ranked import RankPlan
from tests.executor.harness import row_start
from tests.jobs.driving import children_of, wait_until
from tests.ranks.echo import SLOW
from tests.specs import small_config
from tests.tiny_llm import CONFIG, tiny_llm
from tests.weights.tiny import tiny_model

PROMPTS = [[i, i + 1, i + 2] for i in range(4)]
ENDLESS = SamplingParams(max_tokens=450, ignore_eos=True, temperature=0)
OPTIONS: dict[str, Any] = {"skip_tokenizer_init": True, "tokenizer": None}


def open_llm(folder: Path, size: int = 2) -> LLM:
    return tiny_llm(folder, tensor_parallel_size=size, **OPTIONS)


def executor_of(llm: LLM) -> RanksExecutor:
    found = llm._session.model.executor
    assert isinstance(found, RanksExecutor)
    return found


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def open_files() -> set[str]:
    """Memory files and sockets of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if "memfd:quire" in target or target.startswith(("socket:", "anon_inode:[pidfd]")):
            found.add(f"{entry.name} {target}")
    return found


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of other processes that are tested meanwhile leave theirs elsewhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextmanager
def nothing_left() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() <= before  # an older one may be closed meanwhile
    assert list(Path(tempfile.gettempdir()).glob("quire-*")) == []


def dies(llm: LLM, harm: Callable[[], None], within: float) -> RankDied:
    """What a run ends with that is harmed soon after it began."""
    happened: list[float] = []

    def later() -> None:
        happened.append(time.monotonic())
        harm()

    timer = threading.Timer(0.3, later)
    timer.start()
    with pytest.raises(RankDied) as raised:
        while True:
            llm.generate(PROMPTS, ENDLESS, use_tqdm=False)
    noticed = time.monotonic() - happened[0]
    print(f"noticed after {noticed:.2f} s")
    assert noticed < within
    timer.join()
    return raised.value


def kill_once(folder: Path, rank: int, size: int = 2) -> None:
    with nothing_left():
        llm = open_llm(folder, size)
        pids = executor_of(llm).pids
        error = dies(llm, lambda: os.kill(pids[rank], signal.SIGKILL), within=20)
        assert f"rank {rank} was killed by SIGKILL" in str(error)
        assert not any(map(is_alive, pids))
        with pytest.raises(EngineError):
            llm.generate(PROMPTS, ENDLESS, use_tqdm=False)
        llm.close()
        llm.close()


def stop_once(folder: Path, rank: int, size: int = 2) -> None:
    with nothing_left():
        llm = open_llm(folder, size)
        executor = executor_of(llm)
        pids = executor.pids
        executor._alive._silence = 1.0
        error = dies(llm, lambda: os.kill(pids[rank], signal.SIGSTOP), within=20)
        assert "no rank moved for 1 s" in str(error)
        assert not any(map(is_alive, pids))
        llm.close()


def astray_once(folder: Path, rank: int, size: int = 2) -> None:
    """A rank is given another plan than the others, under the same number."""
    with nothing_left():
        llm = open_llm(folder, size)
        executor = executor_of(llm)
        ranks, pids = executor._alive, executor.pids
        with pytest.raises(RankDied, match="different plans under the number 1"):
            number = ranks._number = ranks._number + 1
            ranks._open[number] = {}
            for place, channel in enumerate(ranks._channels):
                plan = StepPlan(ends=PLANS[place == rank])
                channel.send(Kind.PLAN, number, encode(RankPlan(plan)))
            while True:
                ranks._hear(0.05)
                ranks._look()
        assert not any(map(is_alive, pids))
        llm.close()


PLANS = {False: StepPlan().ends, True: StepPlan().ends.copy()}
PLANS[True].resize(1)


def test_a_killed_rank_ends_the_engine_at_once(tmp_path: Path) -> None:
    kill_once(tmp_path, 1)


def test_a_stopped_rank_is_noticed_by_the_deadline(tmp_path: Path) -> None:
    stop_once(tmp_path, 0)


def test_a_rank_with_another_plan_is_noticed_at_that_plan(tmp_path: Path) -> None:
    astray_once(tmp_path, 1)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_any_rank_may_die_at_any_time(size: int, tmp_path: Path) -> None:
    for i in range(50):
        kill_once(tmp_path, i % size, size)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_any_rank_may_stop(size: int, tmp_path: Path) -> None:
    for i in range(20):
        stop_once(tmp_path, i % size, size)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_any_rank_may_go_astray(size: int, tmp_path: Path) -> None:
    for i in range(10):
        astray_once(tmp_path, i % size, size)


@pytest.mark.parametrize("loading", [False, True])
def test_ranks_leave_when_the_engines_process_is_killed(loading: bool, tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from tests.tiny_llm import tiny_llm\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "llm = tiny_llm(folder, tensor_parallel_size=2, skip_tokenizer_init=True, tokenizer=None)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    model, aside = tmp_path / "model", tmp_path / "aside"
    model.mkdir()
    aside.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(model)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(aside)},
    )
    assert child.stdout is not None
    if not loading:
        assert child.stdout.readline() == "ready\n"
    assert wait_until(lambda: len(children_of(child.pid)) == 2)
    pids = children_of(child.pid)
    child.kill()
    child.wait()
    child.stdout.close()
    assert wait_until(lambda: not any(map(is_alive, pids)))
    assert [*aside.iterdir()] == []


def test_a_rank_hears_that_its_engine_is_gone_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "print('importing', flush=True)\nimport time\ntime.sleep(99)\n"
    )
    held, lifeline = os.pipe()
    numbers = map(str, (0, 1, held, held, held, held))
    rank = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, *numbers],
        stdout=subprocess.PIPE,
        pass_fds=[held],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{import_paths()}"},
    )
    assert rank.stdout is not None
    try:
        assert rank.stdout.readline() == b"importing\n"
        os.close(held)
        os.close(lifeline)
        assert rank.wait(timeout=10) == 1
    finally:
        rank.kill()
        rank.communicate()


@pytest.mark.parametrize("size", [10, 50 << 10, 500 << 10])
def test_every_rank_is_given_its_own_job_however_large(size: int) -> None:
    """A job has a plan for each layer."""
    jobs = [{"share": rank, "layers": str(rank) * size} for rank in range(3)]
    with nothing_left():
        ranks = RankProcesses("tests.ranks.echo", jobs)
        found = [from_json(answer.data) for _, answer in sorted(ranks.answers(0).items())]
        for number in range(20):
            sent = ranks.tell(Kind.PLAN, bytes([number]) * size)
            assert {m.data for m in ranks.answers(sent).values()} == {bytes([number]) * size}
        ranks.close()
    assert [{name: job[name] for name in jobs[0]} for job in found] == jobs


def test_ranks_that_read_weights_are_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of adapters too, but not plans that were sent before them."""
    # Of a machine that is busy steps are slow, and then more silence is none.
    monkeypatch.setattr(processes, "SLOW_STEPS", 0)
    config = small_config(adapters=AdapterOptions(max_loras=1, max_lora_rank=8, max_cpu_loras=1))
    executor = RanksExecutor(config, "tests.ranks.echo", [{}, {}], silence=0.7)
    executor.handles.adapter = lambda number: AdapterWeights({})
    ranks = executor._alive
    ranks.wait_started()
    ranks.answers(ranks.tell(Kind.WAKE, SLOW), reading=True)
    answered = ranks.tell(Kind.PLAN)
    step = executor.submit(StepPlan(starts=(row_start(0, [1], adapter=1),)))
    assert len(ranks.answers(answered)) == len(ranks.answers(step.number)) == 2
    ranks.tell(Kind.PLAN, SLOW)
    with pytest.raises(RankDied, match="no rank moved for 1 s"):
        ranks.answers(ranks.tell(Kind.WAKE), reading=True)
    executor.close()


def test_what_ranks_find_while_they_load_is_raised_as_it_is(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, file)
    with nothing_left(), pytest.raises(CorruptModel, match="down_proj.weight' is missing"):
        LLM(str(tmp_path), skip_tokenizer_init=True, dtype="float32", tensor_parallel_size=2)


def run_job(folder: Path, output: str, kill: bool) -> bytes:
    """`quire run` on two ranks; the second is killed once a row is finished."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f'{{"text": "Number {i} is"}}\n' for i in range(40)))
    given = {"tensor_parallel_size": 2, "load_format": "dummy", "tokenizer": "smollm2"}
    given |= {"dtype": "float32", "max_num_seqs": 4, "kv_cache_memory_bytes": 8 << 20}
    options = [word for name, value in given.items() for word in ("--option", f"{name}={value}")]
    # With a flag of Python's own it is not forked, and a rank is known by its command line.
    command = [sys.executable, "-u", "-m", "quire", "run", str(rows), "-m", str(folder)]
    command += ["-p", "{{ text }}", "-o", str(folder / output), "--max-tokens", "40", *options]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    said = []
    for line in job.stderr:
        said.append(line)
        if kill and re.match(r"[1-9]\d*/40 rows", line):
            os.kill(rank_of(job.pid), signal.SIGKILL)
            kill = False
    job.stderr.close()
    assert job.wait() == 0 and not kill, "".join(said)
    return (folder / output).read_bytes()


def rank_of(pid: int) -> int:
    """The process of the second rank, below a process."""
    for child in children_of(pid):
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"quire.session.rank" in words and b"1" in words:
            return child
        found = rank_of(child)
        if found:
            return found
    return 0


@pytest.mark.long
def test_a_job_goes_on_to_the_same_bytes_after_a_rank_was_killed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    undisturbed = run_job(tmp_path, "one.jsonl", kill=False)
    assert run_job(tmp_path, "two.jsonl", kill=True) == undisturbed
