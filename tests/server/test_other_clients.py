"""Clients that are not installed for development, against a real server with the default model:
`pip install llm litellm inspect-ai 'lm-eval[api]'` beside quire, then this file with --long and
-W ignore (what they leave open is theirs)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from quire.server.serve import Serving
from tests.server.serving import KEY, serving

pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = "smollm2"
ASK = "What is the capital of France? One word."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    options = {"kv_cache_memory_bytes": 128 << 20, "max_model_len": 2048}
    with serving(tmp_path_factory.mktemp("server"), MODEL, options=options) as made:
        yield made


def needs(name: str) -> pytest.MarkDecorator:
    """Asked before a server is started."""
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@needs("llm")
def test_llm_at_the_command_line(server: Serving, tmp_path: Path) -> None:
    at = f"{server.address}/v1"
    known = f"- model_id: q\n  model_name: {MODEL}\n  api_base: {at}\n  api_key_name: q\n"
    (tmp_path / "extra-openai-models.yaml").write_text(known)
    usual = ["-o", "max_tokens", "8", "-o", "temperature", "0", "--key", KEY]

    def told(*given: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "llm", *given],
            env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout

    assert "Paris" in told("-m", "q", ASK, *usual)
    assert "Paris" in told("-m", "q", ASK, "--no-stream", *usual)
    assert "Paris" in told("openai", "endpoint", at, "-m", MODEL, ASK, *usual)
    assert MODEL in told("openai", "endpoint", at, "--models", "--key", KEY)


@needs("litellm")
@pytest.mark.long
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm(server: Serving, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download
    litellm = import_module("litellm")
    usual: Any = {"api_base": f"{server.address}/v1", "api_key": KEY, "num_retries": 0}
    model, messages = f"{provider}/{MODEL}", [{"role": "user", "content": ASK}]

    def ask(**more: Any) -> Any:
        asked = {"messages": messages, "max_tokens": 8, "temperature": 0, **usual, **more}
        return litellm.completion(**{"model": model, **asked})

    assert "Paris" in ask().choices[0].message.content
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "Paris" in "".join(texts) and chunks[-1].usage.completion_tokens == 8
    [call] = ask(tools=[TOOL], tool_choice="required", max_tokens=60).choices[0].message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(messages=[{"role": "user", "content": "x " * 5000}])
    with pytest.raises(litellm.NotFoundError):
        ask(model=f"{provider}/other")


@needs("litellm")
@pytest.mark.long
def test_litellm_runs_batches_here(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = import_module("litellm")
    usual: Any = {"api_base": f"{server.address}/v1", "api_key": KEY}
    usual["custom_llm_provider"] = "openai"
    path = "/v1/chat/completions"
    body = {"model": MODEL, "messages": [{"role": "user", "content": ASK}], "max_tokens": 8}
    line = {"custom_id": "a", "method": "POST", "url": path, "body": body}
    file = litellm.create_file(
        file=("in.jsonl", json.dumps(line).encode()), purpose="batch", **usual
    )
    batch = litellm.create_batch(
        completion_window="24h", endpoint=path, input_file_id=file.id, **usual
    )
    deadline = time.monotonic() + 60
    while batch.status not in ("completed", "failed") and time.monotonic() < deadline:
        time.sleep(0.2)
        batch = litellm.retrieve_batch(batch_id=batch.id, **usual)
    assert batch.status == "completed" and batch.request_counts.completed == 1
    assert b"Paris" in litellm.file_content(file_id=batch.output_file_id, **usual).content


@needs("inspect_ai")
@pytest.mark.long
@pytest.mark.parametrize("batch", [False, True])
def test_inspect(server: Serving, batch: bool, tmp_path: Path) -> None:
    inspect_ai = import_module("inspect_ai")
    models = import_module("inspect_ai.model")
    sample = import_module("inspect_ai.dataset").Sample
    solver = import_module("inspect_ai.solver").generate()
    scorer = import_module("inspect_ai.scorer").includes()
    quick = models.BatchConfig(send_delay=1, tick=1) if batch else None
    model = models.get_model(
        f"openai/{MODEL}",
        base_url=f"{server.address}/v1",
        api_key=KEY,
        config=models.GenerateConfig(max_tokens=16, temperature=0, batch=quick),
    )
    samples = [
        sample(input=f"What is the capital of {country}? One word.", target=city)
        for country, city in (("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"))
    ]
    task = inspect_ai.Task(dataset=samples, solver=solver, scorer=scorer)
    [log] = inspect_ai.eval(task, model=model, display="none", log_dir=str(tmp_path))
    assert log.status == "success"
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


@needs("lm_eval")
@needs("datasets")
@pytest.mark.long
def test_lm_eval_scores_what_quire_eval_scores(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm_eval, datasets = import_module("lm_eval"), import_module("datasets")
    from tests.evals.tasks.make_lm_eval_oracle import splits

    def load(path: str, name: str | None = None, **_: Any) -> Any:
        found = splits(path, name)
        return datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in found.items()})

    monkeypatch.setattr(datasets, "load_dataset", load)  # its download alone is replaced
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    at = {"model": MODEL, "num_concurrent": 4, "max_retries": 1, "auth_token": KEY}

    def scores(kind: str, path: str, task: str, limit: int, **more: Any) -> Any:
        args = {**at, "base_url": f"{server.address}/v1/{path}", **more.pop("args", {})}
        made = lm_eval.simple_evaluate(
            model=kind, model_args=args, tasks=[task], limit=limit, bootstrap_iters=0, **more
        )
        return made["results"][task]

    # The server's own tokenizer is found by itself, at /tokenizer_info and /tokenize.
    theirs = scores("local-completions", "completions", "arc_easy", 60)
    options = [
        *("--option", "kv_cache_memory_bytes=134217728", "--option", "max_model_len=2048"),
        *("--limit", "60", "--json", "-o", str(tmp_path / "out.jsonl")),
    ]
    told = subprocess.run(
        [sys.executable, "-m", "quire", "eval", "arc_easy", "-m", MODEL, *options],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    ours = {one["metric"]: one["mean"]["value"] for one in json.loads(told)["arc_easy"]["metrics"]}
    assert ours == pytest.approx({name: theirs[f"{name},none"] for name in ("acc", "acc_norm")})
    chat = scores(
        "local-chat-completions",
        "chat/completions",
        "gsm8k_cot",
        2,
        args={"tokenizer_backend": None},
        apply_chat_template=True,
        gen_kwargs="max_gen_toks=16",
        num_fewshot=0,
    )
    assert chat["exact_match,flexible-extract"] >= 0
