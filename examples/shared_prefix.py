"""Prompts that begin alike are computed once: python examples/shared_prefix.py [MODEL]"""

import sys

from quire import LLM, SamplingParams

PREAMBLE = """A list of countries, each with its capital city and its continent.
Country: Spain. Capital: Madrid. Continent: Europe.
Country: Kenya. Capital: Nairobi. Continent: Africa.
Country: Peru. Capital: Lima. Continent: South America.
Country: Thailand. Capital: Bangkok. Continent: Asia.
Country: Norway. Capital: Oslo. Continent: Europe.
"""
countries = ["Japan", "Egypt", "Italy", "Argentina", "Austria", "India"]
prompts = [f"{PREAMBLE}Country: {country}. Capital:" for country in countries]

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, stop=["\n"]))

for country, output in zip(countries, outputs, strict=True):
    print(f"{country:<10} {output.outputs[0].text.strip()}")
cached = sum(output.num_cached_tokens or 0 for output in outputs)
total = sum(len(output.prompt_token_ids or ()) for output in outputs)
print(f"{cached} of {total} prompt tokens came from the prefix cache")
