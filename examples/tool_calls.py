"""Tool calls as fields of an answer: python examples/tool_calls.py [MODEL]

The grammar lets the model write nothing but a call of one of the tools, so a small one will do.
"""

import json
import sys

from quire import LLM, SamplingParams, StructuredOutputsParams


def closed(**properties: object) -> dict[str, object]:
    """The schema of an object with exactly these properties."""
    named = {"properties": properties, "required": list(properties)}
    return {"type": "object", **named, "additionalProperties": False}


names = ["get_weather", "get_population"]
place = closed(city={"type": "string", "maxLength": 20})
tools = [{"type": "function", "function": {"name": name, "parameters": place}} for name in names]
call = json.dumps(closed(name={"enum": names}, arguments=place))
grammar = f'start: "<tool_call>" %json {call} "</tool_call>"'

questions = ["What is the weather in Paris?", "How many people live in Oslo?"]
system = {"role": "system", "content": f"Answer with a call of {' or '.join(names)}."}
chats = [[system, {"role": "user", "content": question}] for question in questions]
params = SamplingParams(
    temperature=0, max_tokens=80, structured_outputs=StructuredOutputsParams(grammar=grammar)
)

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    outputs = llm.chat(chats, params, tools=tools)

for question, output in zip(questions, outputs, strict=True):
    for made in output.outputs[0].tool_calls:
        print(f"{question} -> {made.name}({made.arguments})")
