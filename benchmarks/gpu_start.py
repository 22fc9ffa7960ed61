"""How long a new process takes to its first tokens, and where that time goes.

    python benchmarks/gpu_start.py qwen3-0.6b            when each stage was over, kernels compiled
    python benchmarks/gpu_start.py qwen3-0.6b --cold     the same with nothing compiled

The stages are timed in a child process whose functions are wrapped; `start` (a part of gpu.py)
times an untouched one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes
from benchmarks.harness import Budget

ROOT = Path(__file__).resolve().parents[1]
LEAST_SECONDS = 15.0  # a start may take this long

START = """
import time, sys
from quire import LLM, SamplingParams
llm = LLM({path!r}, **{options!r})
ready = time.time()
params = SamplingParams(max_tokens=32, ignore_eos=True, detokenize=False)
llm.generate([{{"prompt_token_ids": list(range(10, 74))}}] * 4, params, use_tqdm=False)
print("ready", round(ready - {begun}, 2), "done", round(time.time() - {begun}, 2), flush=True)
"""


def start(budget: Budget, models: list[str], options: dict[str, Any]) -> None:
    """A new process, from its start to 4 x 32 tokens: nothing compiled, then compiled, twice."""
    report: dict[str, str] = {}
    for model in models:
        with tempfile.TemporaryDirectory() as folder, shapes.opened(model, **options) as shape:
            for state in ("nothing compiled", "compiled", "compiled, again"):
                if budget.left < LEAST_SECONDS:
                    print(f"start of {model}, {state}: {budget.left:.0f} s are left", flush=True)
                    return
                code = START.format(path=shape.path, options=shape.options, begun=time.time())
                said = _run(["-c", code], folder, budget.left)
                report[f"{model}, {state}"] = said
                print(f"start of {model}, {state}: {said}", flush=True)
                budget.write("start", report)


def _run(arguments: list[str], folder: str, seconds: float) -> str:
    """What a new Python prints, with caches of its own; what went wrong if that is nothing."""
    env = {**os.environ, "TRITON_CACHE_DIR": f"{folder}/triton", "PYTHONPATH": str(ROOT)}
    env["QUIRE_HOME"] = f"{folder}/quire"
    # Python's own cache, too, which an environment may have turned off: torch has 1,000 modules.
    env["PYTHONPYCACHEPREFIX"] = f"{folder}/python"
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        run = subprocess.run(
            [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"not over after {seconds:.0f} s"
    return run.stdout.strip() if not run.returncode else f"{run.stdout}{run.stderr[-1500:]}"


class Timeline:
    """What began when, and took how long, in seconds since the process began."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._lock = threading.Lock()

    def mark(self, name: str, before: float | None = None) -> None:
        now = time.time()
        took = "" if before is None else f"  took {now - before:6.3f}"
        where = threading.current_thread().name
        with self._lock:
            print(f"{now - self._begun:7.3f} {name}{took}  {where}", flush=True)

    def wrap(self, owner: Any, name: str, shown: str | None = None) -> None:
        """Say when this function returned; `owner` is a module or a class."""
        act: Callable[..., Any] = getattr(owner, name)

        def timed(*given: Any, **more: Any) -> Any:
            before = time.time()
            try:
                return act(*given, **more)
            finally:
                self.mark(shown or name, before)

        setattr(owner, name, timed)


def child(path: str, options: dict[str, Any], begun: float) -> None:
    """One start, with a line for every stage."""
    line = Timeline(begun)
    line.mark("python")
    before = time.time()
    from quire import LLM, SamplingParams

    line.mark("import quire", before)
    import quire.session.loading as loading

    line.wrap(loading, "locate")
    line.wrap(loading, "begin_compiling")
    line.wrap(loading, "_executor")
    _wrap_when_torch_is_there(line)
    before = time.time()
    llm = LLM(path, **options)
    line.mark("LLM", before)
    line.wrap(type(llm._session.engine.executor), "submit")
    params = SamplingParams(max_tokens=32, ignore_eos=True, detokenize=False)
    before = time.time()
    prompts: list[Any] = [{"prompt_token_ids": list(range(10, 74))}] * 4
    llm.generate(prompts, params, use_tqdm=False)
    line.mark("generate", before)
    before = time.time()
    llm.generate(prompts, params, use_tqdm=False)
    line.mark("generate again", before)


def _wrap_when_torch_is_there(line: Timeline) -> None:
    """Wrap the stages behind torch's import when it was imported for a GPU."""
    import quire.session.loading as loading

    executor = loading._gpu_executor

    def wrapped(*given: Any) -> Any:
        line.mark("torch imported, device asked")
        before = time.time()
        import quire.executor.cuda.executor as cuda
        import quire.executor.precompile.parent as compiling
        import quire.executor.precompile.warmup as warmup
        import quire.weights.load as load

        line.mark("import executor", before)
        line.wrap(warmup.Warmup, "__init__", "kernels begun")
        line.wrap(warmup.Warmup, "wait", "kernels ready")
        line.wrap(warmup, "_call", "a kernel")
        line.wrap(compiling.Compiling, "wait", "compiled elsewhere")
        line.wrap(load, "dummy_weights")
        for name in ("_build", "_make_runner", "start"):
            line.wrap(cuda.CudaExecutor, name)
        line.wrap(cuda, "make_cache")
        line.wrap(cuda, "num_cuda_blocks")
        return executor(*given)

    loading._gpu_executor = wrapped  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--cold", action="store_true", help="with nothing compiled")
    parser.add_argument("--imports", action="store_true", help="what importing takes, too")
    parser.add_argument("--child", nargs=2, metavar=("OPTIONS", "BEGUN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        given, begun = arguments.child
        child(arguments.models[0], json.loads(given), float(begun))
        return
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder, shapes.opened(model) as shape:
            states = ["nothing compiled", "compiled"]
            for state in states:
                words = [__file__, shape.path, "--child", json.dumps(shape.options)]
                said = _run([*words, str(time.time())], folder, 120)
                if arguments.cold or state == "compiled":
                    print(f"{model}, {state}:\n{said}", flush=True)
            if arguments.imports:
                print(f"{model}, imports:\n{_imports(shape, folder)}", flush=True)


def _imports(shape: shapes.Model, folder: str, count: int = 45) -> str:
    """The modules that take longest to import: microseconds alone, with what they import, name."""
    code = START.format(path=shape.path, options=shape.options, begun=time.time())
    env = {**os.environ, "TRITON_CACHE_DIR": f"{folder}/triton", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], env=env, capture_output=True, text=True
    )
    rows = []
    for line in run.stderr.splitlines():
        alone, _, rest = line.removeprefix("import time:").partition("|")
        whole, _, name = rest.partition("|")
        if alone.strip().isdigit() and whole.strip().isdigit():
            rows.append((int(alone), int(whole), name.rstrip()))
    rows.sort(key=lambda row: -row[1])
    total = sum(row[0] for row in rows) / 1e6
    shown = [f"{alone:>9} {whole:>9} {name}" for alone, whole, name in rows[:count]]
    return "\n".join([f"{total:.2f} s in {len(rows)} modules", *shown])


if __name__ == "__main__":
    main()
