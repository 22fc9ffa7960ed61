"""Give each prompt its own parameters: python examples/per_prompt_params.py [MODEL]"""

import sys

from quire import LLM, SamplingParams

jobs = {
    "likeliest tokens": SamplingParams(temperature=0, max_tokens=20),
    "sampled, the same each time": SamplingParams(temperature=0.8, seed=7, max_tokens=20),
    "three different answers": SamplingParams(n=3, temperature=1.0, top_p=0.9, max_tokens=12),
    "up to the first full stop": SamplingParams(temperature=0, stop=["."], max_tokens=40),
    "with log-probabilities": SamplingParams(temperature=0, logprobs=2, max_tokens=3),
}
prompt = "The old lighthouse keeper looked out at the sea and"

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    outputs = llm.generate([prompt] * len(jobs), list(jobs.values()))

for name, output in zip(jobs, outputs, strict=True):
    print(f"{name}:")
    for answer in output.outputs:
        print(f"    ({answer.finish_reason}) {answer.text!r}")
        for position in answer.logprobs or []:
            print("       ", {p.decoded_token: round(p.logprob, 2) for p in position.values()})
