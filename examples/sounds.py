"""Ask about every sound of a folder: python examples/sounds.py FOLDER answers.jsonl"""

import json
import sys
from pathlib import Path

from quire import LLM, SamplingParams

SUFFIXES = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff"}


def main(folder: str, output: str, model: str = "Qwen/Qwen2-Audio-7B-Instruct") -> None:
    paths = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in SUFFIXES)
    chats = [
        [
            {
                "role": "user",
                "content": [
                    {"type": "audio_url", "audio_url": {"url": path.absolute().as_uri()}},
                    {"type": "text", "text": "What can be heard? Answer in one sentence."},
                ],
            }
        ]
        for path in paths
    ]
    with LLM(model, allowed_local_media_path=folder) as llm, open(output, "w") as table:
        params = SamplingParams(temperature=0, max_tokens=60)
        # A broken file costs its own line.
        for path, made in zip(paths, llm.chat(chats, params, on_error="return"), strict=True):
            error = None if made.error is None else str(made.error)
            row = {"file": path.name, "answer": made.outputs[0].text.strip(), "error": error}
            table.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
