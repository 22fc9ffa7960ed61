"""The likeliest answers of all, not the first that comes: beam search, free and in a grammar."""

import sys

from quire import LLM, BeamSearchParams, StructuredOutputsParams

prompts = ["The capital of France is", "The three primary colours are"]
date = StructuredOutputsParams(regex=r" (19|20)\d\d")

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    found = llm.beam_search(prompts, BeamSearchParams(beam_width=4, max_tokens=12, n=2))
    years = llm.beam_search(
        "The Berlin Wall fell in the year",
        BeamSearchParams(beam_width=3, max_tokens=8, structured_outputs=date),
    )

for output in found:
    for beam in output.sequences:
        print(f"{beam.cum_logprob:7.2f}  {beam.text!r} ({beam.finish_reason})")
print("likeliest years:", [str(beam.text)[-4:] for beam in years[0].sequences])
