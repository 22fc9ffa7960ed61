"""Ask the same of every chart, answered by a schema: python examples/charts.py a.png b.png"""

import sys
from pathlib import Path

from quire import LLM, SamplingParams
from quire.sampling_params import StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 80},
        "kind": {"enum": ["bar", "line", "pie", "other"]},
        "rises": {"type": "boolean"},
    },
    "required": ["title", "kind", "rises"],
}
PROMPT = "<|vision_start|><|image_pad|><|vision_end|>What does this chart show? Answer in JSON."


def main(paths: list[str], model: str = "Qwen/Qwen2.5-VL-3B-Instruct") -> None:
    prompts = [
        {"prompt": PROMPT, "multi_modal_data": {"image": Path(path).read_bytes()}} for path in paths
    ]
    params = SamplingParams(
        temperature=0, max_tokens=120, structured_outputs=StructuredOutputsParams(json=SCHEMA)
    )
    with LLM(model) as llm:
        for path, output in zip(paths, llm.generate(prompts, params), strict=True):
            print(path, output.outputs[0].text)


if __name__ == "__main__":
    main(sys.argv[1:])
