"""The prompts of the greedy oracle: many kinds of text, in several languages, as plain strings."""

from __future__ import annotations

import random

OPENINGS = [
    "The history of the lighthouse begins",
    "To bake a simple loaf of bread, you need",
    "Question: Why is the sky blue during the day? Answer:",
    "def quicksort(values):\n    if len(values) <= 1:\n        return values\n",
    "Dear neighbours, on Saturday the water will be",
    "Once upon a time, in a village between two rivers,",
    "SELECT name, COUNT(*) FROM orders JOIN customers ON",
    "The quarterly report shows that revenue",
    "A triangle has sides of length 3, 4 and 5. Its area is",
    "1, 1, 2, 3, 5, 8, 13,",
    "La capitale de la France est",
    "Pour préparer une soupe de légumes, commencez par",
    "Die Hauptstadt von Österreich heißt",
    "Wenn der Zug Verspätung hat, sollten Reisende",
    "El ciclo del agua empieza cuando",
    "En la biblioteca de la ciudad hay",
    "La ricetta della nonna prevede",
    "A floresta amazônica é conhecida por",
    "Столица России — это",
    "今天的天气很好，我们决定",
    "日本の四季は",
    "العلم هو",
    "오늘 아침에 나는",
    "Σήμερα ο καιρός είναι",
    '{"name": "table", "price": 129.5, "tags": ["wood",',
    "import numpy as np\n\nx = np.linspace(0, 1, 11)\n",
    "Translate to German: The cat sleeps on the warm stone. ->",
    "Summarise in one sentence: Plants turn light into sugar and give off oxygen.",
    "Rock, paper,",
    "The mitochondria is the powerhouse of the",
    "Subject: Change of the meeting room\n\nHello all,\n",
    "| city | river |\n|---|---|\n| Vienna | Danube |\n| Paris |",
]
SENTENCES = [
    "Rain fell through the night and the streets were empty by morning.",
    "The result of the measurement was 42.7 degrees, slightly above the limit.",
    "for i in range(10):\n    total += i * i\n",
    "Les enfants jouent dans le jardin pendant que le soleil se couche.",
    "Der alte Baum vor dem Haus trägt in diesem Jahr viele Äpfel.",
    "El tren sale a las ocho y llega antes de la medianoche.",
    "Il mare era calmo e le barche tornavano al porto.",
    "O mercado abre cedo e vende frutas, queijos e flores.",
    "Библиотека открыта каждый день, кроме воскресенья.",
    "春天来了，公园里的花都开了。",
    "電車は七時に駅を出ます。",
    "Water boils at 100 °C at sea level, and at less on a mountain.",
    "Please answer with a list of three items and a short reason for each.",
    "Energy equals mass times the square of the speed of light.",
    "return {key: value for key, value in pairs if value is not None}",
    "The committee agreed to meet again in the spring.",
]
CHAT = "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def oracle_texts(count: int) -> list[str]:
    """Texts of more than 200 tokens, that begin or end with an opening."""
    rng = random.Random(0)
    texts = []
    for i in range(count):
        opening = OPENINGS[i % len(OPENINGS)]
        body = " ".join(rng.sample(SENTENCES, len(SENTENCES)))
        texts.append(f"{body} {body} {opening}" if i % 2 else f"{opening} {body} {body}")
    return texts
