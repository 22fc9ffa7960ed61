"""Answer every prompt of prompts.jsonl in one batch.

python examples/demo.py [MODEL [MAX_TOKENS]]
"""

import json
import sys
import time
from pathlib import Path
from textwrap import shorten

from rich.console import Console
from rich.table import Table

from quire import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
max_tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 64
prompts = Path(__file__).with_name("prompts.jsonl")
rows = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]

with LLM(model) as llm:
    start = time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    outputs = llm.chat([row["messages"] for row in rows], params)
    seconds = time.perf_counter() - start
    kv_cache = llm.kv_cache

results = Path("results/demo.jsonl").resolve()
results.parent.mkdir(exist_ok=True)
with results.open("w", encoding="utf-8") as file:
    for row, output in zip(rows, outputs, strict=True):
        row["output"] = output.outputs[0].text.strip()
        row["finish_reason"] = output.outputs[0].finish_reason
        file.write(json.dumps(row, ensure_ascii=False) + "\n")

table = Table("task", "language", "prompt", "answer", show_lines=True)
first_of_each_task = {row["task"]: row for row in reversed(rows)}
for row in reversed(first_of_each_task.values()):
    texts = row["messages"][-1]["content"], row["output"]
    table.add_row(row["task"], row["language"], *(shorten(text, 140) for text in texts))
Console().print(table)

num_prompt = sum(len(output.prompt_token_ids or ()) for output in outputs)
num_cached = sum(output.num_cached_tokens or 0 for output in outputs)
num_output = sum(len(output.outputs[0].token_ids) for output in outputs)
print(
    f"{len(rows)} prompts in {seconds:.1f} s: {num_prompt:,} prompt and {num_output:,} output "
    f"tokens, {num_output / seconds:,.0f} output tok/s; KV at most {kv_cache.peak_blocks:,} of "
    f"{kv_cache.num_blocks:,} blocks; {num_cached / num_prompt:.0%} of the prompts from the cache"
)
print(f"All results: {results}")
