"""Answer a table, score the answers, look at them: python examples/scored_job.py [MODEL]"""

import sys
from pathlib import Path

from quire import Job
from quire.evals.scoring.run import score_run
from quire.jobs.output.results import StoredRun
from quire.report.page import write_report

rows = [
    {"country": "France", "continent": "Europe", "capital": "Paris"},
    {"country": "Italy", "continent": "Europe", "capital": "Rome"},
    {"country": "Norway", "continent": "Europe", "capital": "Oslo"},
    {"country": "Japan", "continent": "Asia", "capital": "Tokyo"},
    {"country": "Thailand", "continent": "Asia", "capital": "Bangkok"},
    {"country": "Nepal", "continent": "Asia", "capital": "Kathmandu"},
]
output = Path("results/capitals.jsonl")
output.parent.mkdir(exist_ok=True)

job = Job(
    rows,
    output,
    model=sys.argv[1] if len(sys.argv) > 1 else "smollm2",
    prompt="The capital of Spain is Madrid.\nThe capital of {{ country }} is",
    chat=False,
    stop=[".", "\n"],
    max_tokens=8,
)
report = job.run(progress=False)
print(f"{report.num_ok} of {report.num_rows} rows answered")

[score] = score_run(output, ["normalised"], truth="capital", groups=["continent"])
print(f"{score.metric} {score.mean.value:.2f} ± {score.mean.stderr:.2f}")
for continent, mean in score.groups["continent"].items():
    print(f"  {continent} {mean.value:.2f} of {mean.num}")

page = output.with_suffix(".html")
print(f"{write_report([StoredRun.open(output)], page):,} bytes in {page}")
