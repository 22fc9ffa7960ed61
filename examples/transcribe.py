"""Transcribe a folder, durably: python examples/transcribe.py FOLDER out.jsonl MODEL"""

import json
import sys
from pathlib import Path
from typing import Any

from quire import Job


def main(folder: str, output: str, model: str, **options: Any) -> None:
    # Killed anywhere and run again, it goes on. A broken file costs its own line.
    job = Job(folder, output, model=model, transcribe=True, timestamps=True, **options)
    report = job.run(progress=False)
    print(f"{report.num_ok} of {report.num_rows} pieces heard")
    for line in Path(output).read_text().splitlines():
        row = json.loads(line)
        print(Path(row["file"]).name, row["language"], row["error"] or row["text"][:60])
        for start, end, text in row["segments"]:
            print(f"  {start:7.2f} {end:7.2f}  {text[:60]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
