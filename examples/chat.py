"""Answer several conversations in one batch: python examples/chat.py [MODEL]"""

import sys

from quire import LLM, SamplingParams

SYSTEM = {"role": "system", "content": "You answer in one short sentence."}
conversations = [
    [SYSTEM, {"role": "user", "content": "What is the capital of France?"}],
    [SYSTEM, {"role": "user", "content": "Why do leaves turn yellow in autumn?"}],
    [
        SYSTEM,
        {"role": "user", "content": "Name a river in Africa."},
        {"role": "assistant", "content": "The Nile."},
        {"role": "user", "content": "Into which sea does it flow?"},
    ],
]

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=32))

for conversation, output in zip(conversations, outputs, strict=True):
    print(f"{conversation[-1]['content']}\n    {output.outputs[0].text.strip()}")
