"""Describe frames of a video, cut out two a second: python examples/video.py FOLDER [MODEL]

ffmpeg -i clip.mp4 -vf fps=2 FOLDER/%04d.jpg writes such frames.
"""

import sys
from pathlib import Path

from PIL import Image

from quire import LLM, SamplingParams


def main(folder: str, model: str = "Qwen/Qwen3-VL-2B-Instruct") -> None:
    frames = [Image.open(path).convert("RGB") for path in sorted(Path(folder).glob("*.jpg"))]
    questions = ["What happens in this video?", "What is seen at its end?"]
    chats = [
        [
            {
                "role": "user",
                "content": [
                    {"type": "video", "video": (frames, {"fps": 2})},
                    {"type": "text", "text": question},
                ],
            }
        ]
        for question in questions
    ]
    # The video is encoded once, however many questions there are.
    with LLM(model) as llm:
        for question, made in zip(
            questions, llm.chat(chats, SamplingParams(temperature=0, max_tokens=80)), strict=True
        ):
            print(question, made.outputs[0].text.strip())


if __name__ == "__main__":
    main(*sys.argv[1:])
