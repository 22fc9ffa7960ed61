"""Runs worth looking at: scores, groups, failures, a restart, and rows that mean harm."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from quire.evals.scoring.named import ScorerOptions, scorers_by_name
from quire.evals.scoring.scores import ScoreOptions, score
from quire.jobs.output.results import StoredRun
from quire.jobs.store.record import ResultRecord
from quire.report.page import write_report
from tests.jobs.stored import stored_job

SUBJECTS = ("algebra", "geometry", "money")
HARM = (
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    "<svg/onload=window.harmed=1>",
    "--><script>window.harmed=1</script><!--",
    "javascript:window.harmed=1",
    "{{ window.harmed }}${window.harmed=1}",
    "\u2028\u2029\x00\x1b[31m\ud800",
)


def questions(num: int) -> list[dict[str, Any]]:
    return [
        {"question": f"What is {n} + {n}?", "subject": SUBJECTS[n % 3], "answer": str(2 * n)}
        for n in range(num)
    ]


def answers(num: int, seed: int) -> list[Any]:
    """Two of three are right; one in forty fails."""
    chance = random.Random(seed)
    made: list[Any] = []
    for n in range(num):
        if n % 40 == 39:
            made.append(ValueError(f"prompt has {9000 + n} tokens; the model takes 8192"))
            continue
        right = 2 * n if chance.random() < 0.66 else 2 * n + 1
        text = f"Adding {n} to itself gives {right}.\n#### {right}"
        times = [round(chance.random(), 3), 1.2, 2.5]
        made.append(
            ResultRecord(
                row=n,
                key=f"0:{n}",
                content="c",
                epoch=1,
                outputs=(text,),
                finish_reasons=("length" if n % 10 == 0 else "stop",),
                prompt_tokens=40 + n % 17,
                output_tokens=12 + n % 9,
                extra={"timings": times},
            )
        )
    return made


def metrics() -> list[dict[str, Any]]:
    """Two minutes of an engine that was killed in between and came back an hour later."""
    lines = []
    for second in range(120):
        since = second % 60
        lines.append(
            {
                "time": 1_763_190_000.0 + second + (3600 if second >= 60 else 0),
                "running": min(64, 4 * since),
                "waiting": max(0, 500 - 4 * second),
                "kv_use": min(0.9, since / 50),
                "prefix_hits": 0.6,
                "prompt_tokens": 900 * since,
                "output_tokens": 300 * since,
                "finished": 4 * since,
            }
        )
    return lines


def scored_run(folder: Path, num: int, *, seed: int = 1, name: str = "out.jsonl") -> StoredRun:
    few_shot = "Question: What is 1 + 1?\nAnswer: Adding 1 to itself gives 2.\n#### 2\n\n" * 3
    output = stored_job(
        folder,
        questions(num),
        answers(num, seed),
        name=name,
        metrics=metrics(),
        prompt=few_shot + "Question: {{ question }}\nAnswer:",
        chat=False,
        num_failed=num // 40,
    )
    run = StoredRun.open(output)
    scorers = scorers_by_name(["number"], ScorerOptions())
    score(run, scorers, ScoreOptions(truth="answer", groups=("subject",)))
    return run


def page_of(folder: Path, *runs: StoredRun, **options: Any) -> Path:
    target = folder / "report.html"
    write_report(runs, target, **options)
    return target


def harmful_run(folder: Path) -> StoredRun:
    """Every place that data can reach holds something that must not run."""
    rows = [{"question": harm, f"column {harm}": harm, "answer": harm} for harm in HARM]
    outputs: list[Any] = [*HARM[:-1], ValueError(HARM[0])]
    output = stored_job(
        folder,
        rows,
        outputs,
        name="harm&<!--<script>.jsonl",
        prompt="{{ question }}" + HARM[1],
        model=HARM[0],
        system=HARM[1],
        command=("quire", "run", HARM[0]),
        sampling={"stop": [HARM[0]]},
    )
    scorer = folder / "mine.py"
    scorer.write_text("def mine(output, row): return 1\n")
    run = StoredRun.open(output)
    options = ScoreOptions(truth="answer", groups=("question",))
    score(run, scorers_by_name(["exact", f"{scorer}:mine"], ScorerOptions()), options)
    return run
