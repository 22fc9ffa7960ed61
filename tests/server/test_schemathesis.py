"""Requests that /openapi.json allows, and others: `pip install schemathesis` beside quire, then
this file with --long."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.server.serving import KEY, client, serving

EXAMPLES = 100  # of each operation, beside those that cover its schema
CHECKS = (
    *("no_failure", "no_leak", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "unsupported_method", "allow_header_conformance"),
    "ignored_auth",
)
# The fake model's draws leave a grammar that could be compiled, and it scores no token: every other
# failure is ours.
HOOKS = r"""
import re, schemathesis

LEAK = re.compile(r"0x[0-9a-f]{6,}|/home/|/tmp/|site-packages|Traceback|\.py\b")

@schemathesis.check
def no_failure(ctx, response, case):
    asked = case.body if isinstance(case.body, dict) else {}
    scores = asked.get("logprobs") or asked.get("top_logprobs") or asked.get("label_token_ids")
    known = '"grammar_failed"' in response.text or (scores and '"row_error"' in response.text)
    known = known or (case.path.startswith("/v1/messages") and "grammar" in response.text)
    assert response.status_code < 500 or known, response.text

@schemathesis.check
def no_leak(ctx, response, case):
    found = None if case.path in ("/", "/openapi.json") else LEAK.search(response.text)
    sent = repr((case.body, case.path_parameters, case.query))
    assert found is None or found[0] in sent, response.text
"""


@pytest.mark.long
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_every_answer_is_as_described(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    with serving(tmp_path / "data", "fake:rows=8") as server:
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{server.address}/openapi.json",
        ]
        command += ["-H", f"Authorization: Bearer {KEY}", "--checks", ",".join(CHECKS)]
        command += ["--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES), "--no-shrink"]
        command += ["--generation-allow-x00", "true", "--suppress-health-check", "all"]
        command += ["--continue-on-failure", "--warnings", "off", "--generation-deterministic"]
        told = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "SCHEMATHESIS_HOOKS": "hooks"},
            capture_output=True,
            text=True,
        )
        assert told.returncode == 0, told.stdout[-10_000:]
        with client(server) as http:
            assert http.get("/health").status_code == 200
        assert server.bridge.stats().restarts == 0
