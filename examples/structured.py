"""Answers that a program can read: a schema, a choice and a pattern, each for its own prompt."""

import json
import sys

from quire import LLM, SamplingParams, StructuredOutputsParams

city = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
}
asked = {
    "Where is the Eiffel Tower? Answer in JSON.": StructuredOutputsParams(json=city),
    "Is this review good or bad? 'I loved every page.'": StructuredOutputsParams(
        choice=["good", "bad"]
    ),
    "When did the First World War begin? Answer with the year.": StructuredOutputsParams(
        regex=r"[12]\d{3}"
    ),
}
chats = [[{"role": "user", "content": question}] for question in asked]
params = [
    SamplingParams(temperature=0, max_tokens=60, structured_outputs=shape)
    for shape in asked.values()
]

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    answers = [output.outputs[0].text for output in llm.chat(chats, params)]

for question, answer in zip(asked, answers, strict=True):
    print(f"{question}\n  {answer}")
print(f"The country is {json.loads(answers[0])['country']}.")
