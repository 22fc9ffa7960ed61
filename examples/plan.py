"""See what a batch will cost before running it: python examples/plan.py [MODEL]"""

import json
import sys
from pathlib import Path

from quire import LLM, SamplingParams

lines = Path(__file__).with_name("prompts.jsonl").read_text(encoding="utf-8").splitlines()
conversations = [json.loads(line)["messages"] for line in lines]
prompts = ["\n".join(message["content"] for message in messages) for messages in conversations]
params = SamplingParams(temperature=0, max_tokens=16)

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    print(llm.plan(prompts, params).explain())
