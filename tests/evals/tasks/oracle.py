"""Where lm-eval's prompts are kept, and how they are hashed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

ORACLE = Path(__file__).parent / "lm_eval_oracle.json"


def digest(rows: list[Any]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
