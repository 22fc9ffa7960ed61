"""A job that survives being killed: python examples/job.py [MODEL], as often as you like."""

import json
import sys
from pathlib import Path

from quire import Job

output = Path("results/colours.jsonl")
output.parent.mkdir(exist_ok=True)
things = ["the sky", "grass", "a lemon", "snow", "coal", "a ripe tomato"]

job = Job(
    ({"thing": thing} for thing in things),  # or the path of a JSONL, CSV, Parquet or Arrow file
    output,
    model=sys.argv[1] if len(sys.argv) > 1 else "smollm2",
    prompt="What colour is {{ thing }}?",
    choice=["blue", "green", "yellow", "white", "black", "red"],
)
report = job.run(progress=False)
print(f"{report.num_ok} of {report.num_rows} rows answered, {report.num_before} of them before")
for line in output.read_text(encoding="utf-8").splitlines():
    row = json.loads(line)
    print(f"  {row['thing']}: {row['output']}")
