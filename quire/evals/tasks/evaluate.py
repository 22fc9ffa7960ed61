"""`quire eval`: a task's questions as a job, then its metrics over what is stored."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.evals.scoring.named import ScorerOptions, scorers_by_name
from quire.evals.scoring.scores import MetricScore, ScoreOptions, keep_summary, score
from quire.evals.scoring.statistics import Mean, pooled
from quire.evals.tasks.gsm8k import gsm8k, gsm8k_cot
from quire.evals.tasks.humaneval import NAME as HUMANEVAL
from quire.evals.tasks.humaneval import humaneval
from quire.evals.tasks.multiple_choice import arc, hellaswag, mmlu
from quire.evals.tasks.subjects import FIELD_OF, FIELDS, SUBJECTS
from quire.evals.tasks.task import Task, rows_of
from quire.jobs.job import Job
from quire.jobs.job_run import JobReport
from quire.jobs.output.results import StoredRun
from quire.jobs.store.durable import replacing

# Each follows lm-eval 0.4.13's task of the same name.
_SINGLE: dict[str, Callable[[], Task]] = {
    "gsm8k": gsm8k,
    "gsm8k_cot": gsm8k_cot,
    "arc_easy": partial(arc, "Easy"),
    "arc_challenge": partial(arc, "Challenge"),
    "hellaswag": hellaswag,
    HUMANEVAL: humaneval,
}
_GROUPS: dict[str, tuple[str, ...]] = {
    "mmlu": SUBJECTS,
    **{f"mmlu_{field}": subjects for field, subjects in FIELDS.items()},
}
NAMES = (*_SINGLE, *_GROUPS)


def tasks_by_name(name: str, *, examples: Path | None = None) -> Sequence[Task]:
    """The tasks of a name: one task, or one for each subject of a group."""
    if examples is not None and name != "gsm8k":
        raise InvalidOption("--examples goes with gsm8k alone", parameter="examples")
    if name == "gsm8k":
        return [gsm8k(examples)]
    if name in _SINGLE:
        return [_SINGLE[name]()]
    if name in _GROUPS:
        return [mmlu(subject) for subject in _GROUPS[name]]
    if (subject := name.removeprefix("mmlu_")) in SUBJECTS:
        return [mmlu(subject)]
    close = difflib.get_close_matches(name, [*NAMES, *(f"mmlu_{s}" for s in SUBJECTS)], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InvalidOption(
        f"no task is called {name!r}.{hint} Known: {', '.join(NAMES)}, and mmlu_SUBJECT",
        parameter="task",
        value=name,
    )


_SUBJECT, _FIELD = "subject", "field"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """Options of an evaluation; None means the task's own value."""

    model: str
    output: Path | None = None
    limit: int | None = None
    shots: int | None = None
    examples: Path | None = None
    max_tokens: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The result of an evaluation; `samples` is the file of a task that is not scored here."""

    task: str
    shots: int
    examples: str
    job: JobReport
    scores: Sequence[MetricScore]
    samples: Path | None = None


def evaluate(name: str, asked: EvalOptions, command: Sequence[str]) -> EvalReport:
    """Answer all questions without an answer, then score everything."""
    if asked.limit is not None and asked.limit < 1:
        raise InvalidOption(f"--limit is at least 1, not {asked.limit}", parameter="limit")
    tasks = tasks_by_name(name, examples=asked.examples)
    job = _job(name, tasks, asked, command)
    report = job.run()
    shots = tasks[0].shots if asked.shots is None else asked.shots
    described = tasks[0].examples.described
    run = StoredRun.open(report.job_dir)
    if name == HUMANEVAL:
        return EvalReport(name, shots, described, report, [], write_samples(run))
    return EvalReport(name, shots, described, report, score_task(run, tasks[0]))


def output_of(name: str, model: str) -> Path:
    """The default output: gsm8k-smollm2.jsonl."""
    last = model.rstrip("/").split("/")[-1].removesuffix(".gguf")
    return Path(f"{name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', last)}.jsonl")


def _job(name: str, tasks: Sequence[Task], asked: EvalOptions, command: Sequence[str]) -> Job:
    task = tasks[0]
    choosing = task.kind == "choices"
    answering: dict[str, Any] = {
        "stop": list(task.stop) or None,
        "max_tokens": task.max_tokens if asked.max_tokens is None else asked.max_tokens,
    }
    return Job(
        _rows(tasks, asked),  # fetched when they are read: after every option was checked
        asked.output or output_of(name, asked.model),
        model=asked.model,
        prompt="{{ prompt }}",
        chat=False,
        continuations="continuations" if choosing else None,
        command=command,
        seed=asked.seed,
        options=dict(asked.options),
        overwrite=asked.overwrite,
        **({} if choosing else answering),
    )


def _rows(tasks: Sequence[Task], asked: EvalOptions) -> Iterator[dict[str, Any]]:
    """The questions of all tasks; a limit is divided evenly over the first of each subject."""
    for number, task in enumerate(tasks):
        limit = asked.limit
        if limit is not None and len(tasks) > 1:
            limit = limit // len(tasks) + (number < limit % len(tasks))
        for row in rows_of(task, limit=limit, shots=asked.shots):
            if len(tasks) > 1:
                row[_FIELD] = FIELD_OF[row[_SUBJECT]]
            yield row


def score_task(run: StoredRun, task: Task) -> list[MetricScore]:
    """The task's metrics, also by subject and field if it has these."""
    scorers = scorers_by_name(task.scorers, ScorerOptions(extract=task.pattern))
    grouped = run.manifest is not None and _has_column(run, _FIELD)
    groups = (_FIELD, _SUBJECT) if grouped else ()
    scores = score(run, scorers, ScoreOptions(truth="truth", groups=groups))
    if grouped:
        scores = [_pooled(metric) for metric in scores]
        keep_summary(run.home, scores)
    return scores


def _has_column(run: StoredRun, column: str) -> bool:
    first = next(iter(run.rows()), None)
    return first is not None and column in first.columns


def _pooled(metric: MetricScore) -> MetricScore:
    """The metric with its error pooled within subjects, as in lm-eval, if each has two rows."""
    subjects = metric.groups[_SUBJECT]
    fields = {
        field: pooled([mean for subject, mean in subjects.items() if FIELD_OF[subject] == field])
        for field in metric.groups[_FIELD]
    }

    def sharper(found: Mean, plain: Mean) -> Mean:
        return found if found.stderr is not None else plain

    return replace(
        metric,
        mean=sharper(pooled(list(subjects.values())), metric.mean),
        groups={
            _FIELD: {f: sharper(m, metric.groups[_FIELD][f]) for f, m in fields.items()},
            _SUBJECT: subjects,
        },
    )


def write_samples(run: StoredRun) -> Path:
    """HumanEval's samples file: a line {"task_id", "completion"} for each answer."""
    path = run.path.parent / f"{run.name.removesuffix('.jsonl')}.samples.jsonl"
    with replacing(path, shared=True) as file:
        for row in run.rows():
            for completion in row.record.outputs:
                sample = {"task_id": row.columns["doc"], "completion": completion}
                file.write(json.dumps(sample).encode() + b"\n")
    return path
