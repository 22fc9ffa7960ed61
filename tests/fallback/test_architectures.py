"""Every causal class of the installed Transformers: native, fallback or refused; none wrong."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import transformers

from quire import LLM
from quire.errors import UnsupportedModel
from tests.fallback.judging import Verdict, judged
from tests.fallback.tiny import MODEL_TYPES, tiny_model

# Kinds that differ: multipliers and scale, softcaps and windows, sinks and experts, latent heads
# with D_v < D_k, layers of different shapes, alibi beside the interface, positions with an offset,
# states alone that take up no chunks, states beside layers that attend, a state that Transformers'
# cache does not hold, the text of a model that sees.
KINDS = {
    "GraniteMoeForCausalLM": "fallback",
    "VaultGemmaForCausalLM": "fallback",
    "GptOssForCausalLM": "fallback",
    "DeepseekV3ForCausalLM": "fallback",
    "MiMoV2FlashForCausalLM": "fallback, one by one",
    "BloomForCausalLM": "fallback, one by one",
    "RobertaForCausalLM": "fallback, one by one",
    "MambaForCausalLM": "fallback, one by one",
    "FalconH1ForCausalLM": "fallback, one by one",
    "RwkvForCausalLM": "fallback, whole texts",
    "Exaone4_5_ForConditionalGeneration": "fallback",
}
# Transformers 5.23 makes none of any config: all layers of a drafter have to share, and may not.
NOT_MADE = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
TABLE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- made by tests/fallback -->", "<!-- end -->"


@pytest.mark.parametrize("architecture", KINDS)
def test_kinds_answer_as_transformers_does(architecture: str, tmp_path: Path) -> None:
    verdict = judged(tiny_model(architecture), tmp_path, model_impl="transformers")
    assert (verdict.how, verdict.wrong) == (KINDS[architecture], "")


def test_a_class_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    verdict = judged(tiny_model("BertLMHeadModel", is_decoder=False), tmp_path)
    assert verdict.how == "refused"
    assert "BertLMHeadModel cannot be run in chunks" in verdict.why


def test_what_is_right_as_whole_texts_alone_runs_where_that_is_asked_for(tmp_path: Path) -> None:
    """RecurrentGemma keeps something that quire does not know."""
    model = tiny_model("RecurrentGemmaForCausalLM")
    verdict = judged(model, tmp_path, model_impl="transformers")
    assert (verdict.how, verdict.wrong) == ("fallback, whole texts", "")
    with pytest.raises(UnsupportedModel, match=r"another kind.* model_impl='transformers' runs it"):
        LLM(str(tmp_path), skip_tokenizer_init=True, dtype="float32", device="cpu")


def test_a_class_that_may_keep_states_and_here_keeps_none_runs_side_by_side(tmp_path: Path) -> None:
    """Granite 4.0 is dense in some sizes: every layer attends."""
    model = tiny_model("GraniteMoeHybridForCausalLM", layer_types=["attention"] * 4)
    verdict = judged(model, tmp_path, model_impl="transformers")
    assert (verdict.how, verdict.wrong) == ("fallback", "")


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # what modules of Transformers say while they are imported
def test_every_causal_class(tmp_path: Path) -> None:
    verdicts = {name: _verdict(name, tmp_path / name) for name in sorted(MODEL_TYPES)}
    wrong = {name: verdict.wrong for name, verdict in verdicts.items() if verdict.wrong}
    assert wrong == {}
    run = [name for name, verdict in verdicts.items() if verdict.how != "refused"]
    assert len(run) >= 0.85 * len(verdicts)
    text = TABLE.read_text()
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    TABLE.write_text(f"{head}{BEGIN}\n{_table(verdicts)}\n{END}{tail}")


def _verdict(name: str, directory: Path) -> Verdict:
    try:
        model = tiny_model(name)
    except (ImportError, ValueError) as error:  # a library for pictures, say
        if isinstance(error, ValueError) and name not in NOT_MADE:
            raise
        return Verdict("refused", f"Transformers cannot make it here: {error}")
    return judged(model, directory)


def _table(verdicts: dict[str, Verdict]) -> str:
    counts: dict[str, int] = {}
    for verdict in verdicts.values():
        counts[verdict.how] = counts.get(verdict.how, 0) + 1
    listed = ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    said = f"Transformers {transformers.__version__}, {len(verdicts)} classes: {listed}."
    lines = [
        textwrap.fill(said, 100),
        "",
        "| class | how | why |",
        "|---|---|---|",
    ]
    for name, verdict in verdicts.items():
        why = " ".join(verdict.why.split()).replace("|", "\\|").removeprefix(f"{name}: ")
        lines.append(f"| {name} | {verdict.how} | {why.partition(' model_impl=')[0][:200]} |")
    return "\n".join(lines)
