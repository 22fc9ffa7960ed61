"""Generate from a list of prompts: python examples/offline.py [MODEL]"""

import sys

from quire import LLM, SamplingParams

prompts = [
    "The three primary colours are",
    "To boil an egg, first",
    "The largest planet of the solar system is",
    "def fibonacci(n):",
]
params = SamplingParams(temperature=0, max_tokens=24)

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    for output in llm.generate(prompts, params):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
