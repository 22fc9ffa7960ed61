"""Nothing that a model's files hold raises anything but that model's typed error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.base.boundary import reason, refusing
from quire.errors import CorruptModel, InvalidOption, InvalidPrompt, ModelError
from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
from quire.inputs.hf_tokenizer import load_hf_tokenizer
from quire.inputs.tokenizer import Tokenizer
from quire.session.loaded_model import GENERATION_DEFAULTS, LoadedModel
from tests.inputs.hostile import GGUF_VALUES, JSON_VALUES, places, put, use
from tests.inputs.makers import gguf_metadata, save, train_byte_bpe, train_sentencepiece

# What is wrong with these is said of the vocabulary, or of the template, as a whole.
WHOLE = ("model", "tokens", "tokenizer.chat_template", "tokenizer.chat_template.tools")
SETTINGS: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": True},
    "pad_token": None,
    "mask_token": "c",
    "model_max_length": 100,
    "clean_up_tokenization_spaces": False,
    "additional_special_tokens": ["<|im_start|>"],
    "extra_special_tokens": {"x": "<y>"},
    "added_tokens_decoder": {"1": {"content": "<s>", "special": True, "lstrip": False}},
    "chat_template": [{"name": "default", "template": "x"}],
}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_gguf_tokenizer_is_built_or_refused(kind: str) -> None:
    backend = train_byte_bpe(False) if kind == "gpt2" else train_sentencepiece()
    good = gguf_metadata(backend, kind, pre="gpt-2", add_bos_token=True, add_space_prefix=True)
    good |= {"tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.eot_token_id": 3}
    good |= {"tokenizer.chat_template": "x", "tokenizer.chat_template.tools": "y"}
    outcomes: Counter[str] = Counter()
    for key in good:
        for value in GGUF_VALUES:
            try:
                use(load_gguf_tokenizer({**good, key: value}))
                outcomes["fine"] += 1
            except (ModelError, InvalidPrompt) as error:
                outcomes[type(error).__name__] += 1
                assert "cannot be built" not in str(error), "caught at the boundary alone"
                named = key.removeprefix("tokenizer.ggml.")
                assert named in str(error) or named in WHOLE, error
    assert outcomes.total() > 300 and outcomes["fine"] > 30 and outcomes["CorruptModel"] > 150


def test_a_tokenizer_config_is_read_or_refused(tmp_path: Path) -> None:
    directory = save(train_byte_bpe(False), tmp_path)
    outcomes: Counter[str] = Counter()
    for path in places(SETTINGS):
        for value in JSON_VALUES:
            text = json.dumps(put(SETTINGS, path, value))
            (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
            try:
                use(load_hf_tokenizer(directory))
                outcomes["fine"] += 1
            except ModelError as error:
                outcomes[type(error).__name__] += 1
    assert outcomes.total() > 600 and outcomes["fine"] > 300 and outcomes["CorruptModel"] > 50


def test_a_tokenizer_json_is_read_or_refused(tmp_path: Path, long_mode: bool) -> None:
    save(train_byte_bpe(False), tmp_path)
    tried = subprocess.run(
        [sys.executable, "-m", "tests.inputs.hostile", str(tmp_path), "1" if long_mode else "17"],
        capture_output=True,
        text=True,
        env={**os.environ, "RUST_BACKTRACE": "0"},
        check=False,
    )
    lines = [line.partition("\t") for line in tried.stdout.splitlines()]
    assert tried.returncode == 0, f"it ended the process: {lines[-1:]}"
    assert len(lines) > 500
    assert not [line for line in lines if line[2].startswith("raw") or not line[2]]
    assert {"fine", "CorruptModel"} <= {line[2] for line in lines}


@pytest.mark.parametrize("prefix", ["x", "é", "\U0001f600", "(?=a)", "a" * 1000])
@pytest.mark.parametrize("escaped", [False, True])
def test_a_prefix_that_merges_lack_does_not_end_the_process(
    prefix: str, escaped: bool, tmp_path: Path
) -> None:
    """In a process of its own: without the check the library aborts."""
    save(train_byte_bpe(False), tmp_path)
    path = tmp_path / "tokenizer.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    state["model"]["continuing_subword_prefix"] = prefix
    text = json.dumps(state)
    if escaped:
        text = text.replace("continuing_subword_prefix", "continuin\\u0067_subword_prefix")
    path.write_text(text, encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from quire.errors import CorruptModel\n"
        "from quire.inputs.hf_tokenizer import load_hf_tokenizer\n"
        "try: load_hf_tokenizer(Path(sys.argv[1]))\n"
        "except CorruptModel as error: print(error)"
    )
    tried = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert tried.returncode == 0, tried.stderr[-500:]
    assert "continuing_subword_prefix" in tried.stdout


def test_a_generation_config_is_read_or_refused() -> None:
    outcomes: Counter[str] = Counter()
    spec: Any = SimpleNamespace(eos_ids=(1,))
    nothing: Any = None
    for key in [*GENERATION_DEFAULTS, "eos_token_id", "bos_token_id"]:
        for value in [*JSON_VALUES, [2**40], [-1], [1.5], [True], [[1]], -0.0]:
            model = LoadedModel("m", spec, nothing, nothing, nothing, None, {key: value})
            for read in (lambda m=model: m.more_eos_ids, model.default_params):
                try:
                    read()
                    outcomes["fine"] += 1
                except (CorruptModel, InvalidOption) as error:
                    outcomes[type(error).__name__] += 1
                    assert "generation_config.json" in str(error)
    assert outcomes.total() > 600 and min(outcomes.values()) > 20


class TestEncoding:
    """A text that the tokenizer cannot encode costs its own row."""

    @pytest.fixture(scope="class")
    @staticmethod
    def panicking() -> Tokenizer:
        """A pattern that gives up on what it must search for long."""
        from tokenizers import Regex, pre_tokenizers

        backend = train_byte_bpe(False)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"(?:x+x+)+y|\s+|\S+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return Tokenizer(backend, special_tokens={})

    def test_a_panic_is_the_error_of_its_row(
        self, panicking: Tokenizer, capfd: pytest.CaptureFixture[str]
    ) -> None:
        texts = ["hello", "x" * 40, "there", "half \ud800"]
        first, panicked, third, broken = panicking.encode_each(texts)
        assert isinstance(panicked, InvalidPrompt) and "retry-limit" in str(panicked)
        assert isinstance(broken, InvalidPrompt) and "surrogate" in str(broken)
        for text, ids in (("hello", first), ("there", third)):
            assert not isinstance(ids, InvalidPrompt)
            assert ids.tolist() == panicking.encode(text).tolist()
        with pytest.raises(InvalidPrompt, match="prompt 1"):
            panicking.encode_batch(texts)
        capfd.readouterr()  # Rust writes its panics to stderr

    def test_texts_beyond_any_model_are_refused_before_they_are_encoded(
        self, panicking: Tokenizer
    ) -> None:
        (found,) = panicking.encode_each(["a " * 2**25])
        assert isinstance(found, InvalidPrompt) and "67,108,864 characters" in str(found)

    def test_batches_of_long_texts_are_cut(
        self, panicking: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("quire.inputs.tokenizer._BATCH_CHARACTERS", 1000)
        texts = ["ab " * 200, "c", "de " * 1_500, "f"]
        whole = panicking.encode_each(texts)
        assert [len(ids) for ids in whole if not isinstance(ids, InvalidPrompt)] == [
            len(panicking.encode(text)) for text in texts
        ]


def test_the_boundary_lets_the_end_of_the_process_pass() -> None:
    class Panic(BaseException):
        pass

    def refuse(why: str) -> CorruptModel:
        return CorruptModel(why)

    for passing in (KeyboardInterrupt, SystemExit, InvalidPrompt("x")):
        with pytest.raises(BaseException) as raised, refusing(refuse):
            raise passing
        assert not isinstance(raised.value, CorruptModel)
    for error in (Panic("index out of range"), ValueError(), RecursionError("x"), MemoryError()):
        with pytest.raises(CorruptModel, match=reason(error)), refusing(refuse):
            raise error
