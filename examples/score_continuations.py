"""Multiple choice without generating a word: python examples/score_continuations.py [MODEL]"""

import sys

from quire import LLM

QUESTIONS = [
    ("The capital of France is", [" Paris", " Berlin", " Madrid", " Rome"], 0),
    ("Water freezes at a temperature of zero degrees", [" Celsius", " Kelvin", " miles"], 0),
    ("A triangle has three sides, and a square has", [" three", " four", " five"], 1),
    ("To open a locked door, you need the right", [" song", " weather", " key"], 2),
    ("The opposite of hot is", [" warm", " cold", " yellow"], 1),
]
contexts = [question for question, _, _ in QUESTIONS]
choices = [options for _, options, _ in QUESTIONS]

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
    scores = llm.score_continuations(contexts, choices)

num_right = 0
for (context, options, right), row in zip(QUESTIONS, scores, strict=True):
    # By the mean of its tokens, so that a longer choice is not at a disadvantage.
    best = max(range(len(row)), key=lambda i: row[i].logprob / row[i].num_tokens)
    num_right += best == right
    print(context)
    for i, (option, score) in enumerate(zip(options, row, strict=True)):
        sign = ">" if i == best else " "
        greedy = ", what the model would write itself" if score.is_greedy else ""
        print(f"  {sign}{option:<10} {score.logprob:8.3f} nats{greedy}")
print(f"{num_right} of {len(QUESTIONS)} right")
