"""Take each result as it finishes, from prompts that are read lazily, and survive a bad one.

python examples/streaming_results.py [MODEL]
"""

import sys
from collections.abc import Iterator

from quire import LLM, RequestOutput, SamplingParams


def prompts() -> Iterator[str]:
    """Could as well be ten million lines of a file: they are read as room appears."""
    for number in range(1, 7):
        yield f"A story about {number} foxes, told in {number} words:"
    yield ""  # an empty prompt breaks a rule: its own row fails, the others do not


def show(index: int, output: RequestOutput) -> None:
    answer = output.outputs[0].text if output.outputs else ""
    print(f"{index}: {output.error or repr(answer)}")


with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    params = SamplingParams(temperature=0, max_tokens=12)
    for index, output in llm.stream(prompts(), params):
        show(index, output)

    print("and as a callback, while generate collects them:")
    params = SamplingParams(temperature=0, max_tokens=6)
    llm.generate(["One, two,", "Monday, Tuesday,"], params, on_result=show, use_tqdm=False)
