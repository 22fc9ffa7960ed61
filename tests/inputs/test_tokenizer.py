from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from quire.errors import CorruptModel, InvalidPrompt, ModelNotFound, UnsupportedModel
from quire.inputs.hf_tokenizer import load_hf_tokenizer
from quire.inputs.tokenizer import Tokenizer
from tests.inputs.makers import SENTENCES, save, strings


@pytest.fixture(scope="session")
def auto_tokenizers(directories: dict[str, Path]) -> dict[str, Any]:
    from transformers import AutoTokenizer

    return {kind: AutoTokenizer.from_pretrained(str(path)) for kind, path in directories.items()}


def same_as(oracle: Any, tokenizer: Tokenizer, texts: list[str]) -> None:
    ids = [row.tolist() for row in tokenizer.encode_batch(texts)]
    hf = tokenizer.hf_tokenizer()
    for text, row in zip(texts, ids, strict=True):
        assert row == oracle(text)["input_ids"] == hf(text)["input_ids"], text
        for skip in (True, False):
            expected = oracle.decode(row, skip_special_tokens=skip)
            assert tokenizer.decode(row, skip_special_tokens=skip) == expected
            assert hf.decode(row, skip_special_tokens=skip) == expected


def test_ids_and_text_are_those_of_auto_tokenizer(
    kind: str, tokenizer: Tokenizer, auto_tokenizers: dict[str, Any], long_mode: bool
) -> None:
    count = 5_000 if long_mode else 500
    same_as(auto_tokenizers[kind], tokenizer, SENTENCES + strings(count, special=True))


def test_text_survives_the_trip_through_ids(tokenizer: Tokenizer) -> None:
    texts = [text for text in strings(300, seed=1) if "▁" not in text and "<0x" not in text]
    rows = tokenizer.encode_batch(texts)
    assert tokenizer.decode_batch(rows) == texts


def test_special_tokens_in_a_text_are_read_as_such(byte_bpe: Tokenizer) -> None:
    ids = byte_bpe.encode("<|im_start|>user").tolist()
    assert byte_bpe.backend.id_to_token(ids[0]) == "<|im_start|>"
    assert byte_bpe.decode(ids) == "user"
    assert byte_bpe.decode(ids, skip_special_tokens=False) == "<|im_start|>user"


@pytest.mark.parametrize("kind", ["BertTokenizer", "DistilBertTokenizerFast", "TokenizersBackend"])
@pytest.mark.parametrize(
    "flags", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"strip_accents": None}]
)
def test_the_configuration_says_how_bert_reads_letters(
    kind: str, flags: dict[str, Any], tmp_path: Path
) -> None:
    """As transformers does, which leaves tokenizers of no kind as tokenizer.json has them."""
    from transformers import AutoTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "éa", "ea", "AB"]
    backend = Backend(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    save(backend, tmp_path, tokenizer_class=kind, unk_token="[UNK]", **flags)
    expected = AutoTokenizer.from_pretrained(tmp_path)
    text = "ab AB éa Éa"
    found = load_hf_tokenizer(tmp_path).encode(text, add_special_tokens=False).tolist()
    assert found == expected.encode(text, add_special_tokens=False)


def test_a_tokenizer_may_cut_special_tokens_in_texts(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(directories["byte_bpe"], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**config, "split_special_tokens": True})
    )
    tokenizer, oracle = load_hf_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    ids = tokenizer.encode("<|im_start|>user").tolist()
    assert ids == oracle("<|im_start|>user")["input_ids"]
    assert tokenizer.decode(ids) == "<|im_start|>user"


def test_beginning_token_is_added_once(sentencepiece: Tokenizer) -> None:
    bos = sentencepiece.bos_id
    plain = sentencepiece.encode("hello").tolist()
    assert plain[0] == bos and plain.count(bos) == 1
    assert sentencepiece.encode("<s>hello").tolist().count(bos) == 1
    assert bos not in sentencepiece.encode("hello", add_special_tokens=False)


def test_tokens_named_only_in_the_configuration_are_added(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(directories["byte_bpe"], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    size = load_hf_tokenizer(tmp_path).vocab_size
    config["added_tokens_decoder"] = {
        str(size): {"content": "<think>", "special": False, "normalized": False},
        str(size + 1): {"content": "<tool>", "special": True, "lstrip": True},
    }
    config["pad_token"] = "<pad>"
    config["additional_special_tokens"] = ["<extra>"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer, oracle = load_hf_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    texts = [f"a {name} b{name}c" for name in ("<think>", "<tool>", "<pad>", "<extra>")]
    same_as(oracle, tokenizer, texts)
    assert tokenizer.encode("<think>").tolist() == [size]
    assert tokenizer.decode([size, size + 1, size + 2]) == "<think>"


@pytest.mark.parametrize(
    ("listed", "seen"),
    [((), "<tool><extra>"), (("<tool>",), "<mask><extra>"), (("<tool>", "<mask>"), "<extra>")],
)
def test_flags_of_a_token_are_those_of_the_configuration(
    listed: tuple[str, ...], seen: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    """Of one that it lists; the usual ones are special, unless a list has others alone."""
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    shutil.copytree(directories["byte_bpe"], tmp_path, dirs_exist_ok=True)
    backend = load_hf_tokenizer(tmp_path).backend
    names = ["<tool>", "<mask>", "<extra>"]
    backend.add_tokens([AddedToken(name, rstrip=True, normalized=True) for name in names])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"mask_token": "<mask>", "additional_special_tokens": ["<extra>"]}
    if listed:
        config["added_tokens_decoder"] = {
            str(backend.token_to_id(name)): {"content": name, "special": name == "<tool>"}
            for name in listed
        }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer, oracle = load_hf_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    texts = [f"a {name} b{name}c" for name in names]
    for text in texts:
        assert tokenizer.encode(text).tolist() == oracle(text)["input_ids"]
    ids = [tokenizer.backend.token_to_id(name) for name in names]
    assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True) == seen


def test_a_limit_baked_into_the_file_does_not_cut_prompts(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(directories["byte_bpe"], tmp_path, dirs_exist_ok=True)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    limit = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**state, "truncation": limit}))
    text = SENTENCES[0]
    assert load_hf_tokenizer(tmp_path).decode(load_hf_tokenizer(tmp_path).encode(text)) == text


def test_chat_templates_come_from_files_before_the_configuration(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(directories["byte_bpe"], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    for given, expected in (("A", {"default": "A"}), (named, {"default": "A", "tool_use": "B"})):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({**config, "chat_template": given})
        )
        assert load_hf_tokenizer(tmp_path).chat_templates == expected
    (tmp_path / "chat_template.jinja").write_text("C")
    assert load_hf_tokenizer(tmp_path).chat_templates == {"default": "C"}
    assert load_hf_tokenizer(tmp_path).hf_tokenizer().chat_template == "C"


def test_lone_surrogates_are_refused_with_their_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidPrompt, match=r"prompt 1: .*U\+D800.* at character 2"):
        tokenizer.encode_batch(["fine", "ab\ud800c"])


def test_ids_beyond_the_vocabulary_add_nothing(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello", add_special_tokens=False).tolist()
    assert tokenizer.decode([*ids, tokenizer.vocab_size + 5]) == "hello"
    assert tokenizer.token_text(tokenizer.vocab_size + 5) == ""


def test_token_text_keeps_the_space_of_a_word(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("over the", add_special_tokens=False)
    assert "".join(map(tokenizer.token_text, ids.tolist())).endswith("over the")
    assert tokenizer.token_text(int(ids[-1])) == " the"


def test_encoding_many_texts_gives_int32_arrays_in_order(tokenizer: Tokenizer) -> None:
    texts = strings(2_500, seed=3)
    rows = tokenizer.encode_batch(texts)
    assert all(row.dtype == np.int32 for row in rows)
    for at in (0, 1_023, 1_024, 2_499):
        np.testing.assert_array_equal(rows[at], tokenizer.encode(texts[at]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer.json", "\x00" * 100),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer_config.json", "{,"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": "y"}}'),
        ("tokenizer_config.json", '{"chat_template": [{"name": 1}]}'),
        ("tokenizer_config.json", '{"chat_template": {"default": 1}}'),
        ("special_tokens_map.json", "nope"),
    ],
)
def test_broken_files_are_corrupt_models(
    name: str, text: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(directories["byte_bpe"], tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(CorruptModel):
        load_hf_tokenizer(tmp_path)


def test_marks_of_the_byte_order_are_no_text(directories: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(directories["byte_bpe"], folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    plain = load_hf_tokenizer(directories["byte_bpe"])
    assert load_hf_tokenizer(folder).encode("a b").tolist() == plain.encode("a b").tolist()


def test_named_templates_are_a_list_or_an_object(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(directories["byte_bpe"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    listed = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}]
    for given in (listed, {"default": "x", "tool_use": "y"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": given}))
        assert load_hf_tokenizer(tmp_path).chat_templates == {"default": "x", "tool_use": "y"}


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "additional_chat_templates/tools.jinja",
        "tokenizer.model",
    ],
)
def test_a_link_out_of_the_model_is_refused_and_those_of_a_hub_cache_are_not(
    name: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    model = tmp_path / "snapshots" / "abc"
    shutil.copytree(directories["byte_bpe"], model)
    if name == "tokenizer.model":  # which transformers would convert
        (model / "tokenizer.json").unlink()
    link = model / name
    link.parent.mkdir(exist_ok=True)
    content = link.read_text() if link.exists() else "{}"
    outside, blob = tmp_path / "secret", tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    for target in (outside, blob):
        target.write_text(content)
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    with pytest.raises(CorruptModel, match="outside of the model; refused"):
        load_hf_tokenizer(model)
    link.unlink()
    link.symlink_to(blob)
    if name == "tokenizer.model":
        with pytest.raises(UnsupportedModel, match="could not be converted"):
            load_hf_tokenizer(model)
    else:
        assert load_hf_tokenizer(model).vocab_size


def test_a_directory_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="skip_tokenizer_init"):
        load_hf_tokenizer(tmp_path)


def test_code_that_comes_with_a_model_is_never_run(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(directories["byte_bpe"], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    config["tokenizer_class"] = "Evil"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    canary = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(canary)!r}, 'w').close()\nclass Evil: pass\n")
    load_hf_tokenizer(tmp_path).hf_tokenizer()
    assert not canary.exists()
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(UnsupportedModel):
        load_hf_tokenizer(tmp_path)
    assert not canary.exists()


def test_another_format_without_transformers_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedModel, match="pip install transformers sentencepiece"):
        load_hf_tokenizer(tmp_path)


def test_encoding_and_decoding_import_neither_torch_nor_transformers(
    directories: dict[str, Path],
) -> None:
    script = f"""
import sys
from pathlib import Path
from quire.inputs import TextPrompt, TokensPrompt
import quire.inputs.chat, quire.inputs.prompt, quire.inputs.detokenize
from quire.inputs.hf_tokenizer import load_hf_tokenizer
tokenizer = load_hf_tokenizer(Path({str(directories["byte_bpe"])!r}))
assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
