"""Weights exchanged by name in a running LLM, and an LLM that sleeps: after it, everything is as in
one that was made with these weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire import (
    LLM,
    EngineAsleep,
    EngineBusy,
    EngineClosed,
    InvalidRequest,
    NotSupported,
    SamplingParams,
)
from tests.parity.families import make_pair
from tests.parity.families_with_states import WITH_STATES
from tests.parity.later_families import LATER
from tests.parity.more_families import MORE, random_model
from tests.parity.newest_families import NEWEST
from tests.parity.older_families import OLDER

PROMPTS = [[5, 6, 7], [9] * 40, [9] * 40 + [3], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
DRAWN = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, logprobs=0)
FAMILIES = [
    *("llama", "llama untied, every bias", "qwen2", "qwen3", "qwen3 untied"),
    "phi3, partial longrope",
]


def open_llm(directory: Path, **options: Any) -> LLM:
    given: dict[str, Any] = {"kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 8}
    given |= {"dtype": "float32", "skip_tokenizer_init": True, "max_num_batched_tokens": 37}
    return LLM(str(directory), **{**given, **options})


def answers(llm: LLM, params: SamplingParams = GREEDY) -> list[tuple[list[int], list[float]]]:
    found = []
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        answer = output.outputs[0]
        assert answer.logprobs is not None
        at = zip(answer.logprobs, answer.token_ids, strict=True)
        found.append((list(answer.token_ids), [p[t].logprob for p, t in at]))
    return found


def trained(oracle: Any, seed: int) -> Any:
    """The model after some training: every weight is another, norms and biases too."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return oracle


def loader(llm: LLM) -> Callable[..., set[str]]:
    """The way down as training loops walk it."""
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    return model.load_weights


@torch.no_grad()
def check_logprobs(oracle: Any, found: list[tuple[list[int], list[float]]]) -> None:
    """What was drawn has the trainer's own probabilities."""
    for prompt, (tokens, logprobs) in zip(PROMPTS, found, strict=True):
        chances = oracle(torch.tensor([[*prompt, *tokens]])).logits[0].log_softmax(-1)
        theirs = chances[len(prompt) - 1 : -1].gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert torch.tensor(logprobs) == pytest.approx(theirs, abs=2e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_new_weights_are_those_of_a_fresh_llm_and_of_the_trainer(name: str, tmp_path: Path) -> None:
    pair = make_pair(name)
    pair.oracle.save_pretrained(tmp_path / "old")
    with open_llm(tmp_path / "old") as llm:
        before = answers(llm)  # and every prefix is cached
        oracle = trained(pair.oracle, 1)
        names = loader(llm)(oracle.state_dict().items())
        assert names >= {n for n, _ in oracle.named_parameters()}
        after, drawn = answers(llm), answers(llm, DRAWN)
    oracle.save_pretrained(tmp_path / "new")
    with open_llm(tmp_path / "new") as fresh:
        assert after == answers(fresh) != before
        assert drawn == answers(fresh, DRAWN)
    check_logprobs(oracle, after)
    check_logprobs(oracle, drawn)


@pytest.mark.parametrize(
    "name",
    [
        *("gpt2", "falcon, newer", "gpt neox", "granite moe, every factor and bias"),
        *("codegen", "dbrx"),
    ],
)
def test_weights_that_are_cut_out_of_stored_tensors_are_exchanged_too(
    name: str, tmp_path: Path
) -> None:
    """Matrices stored [in, out], q, k and v by head, all experts in one tensor: by the names and
    shapes that files have, from memory and from other files."""
    oracle = random_model({**MORE, **OLDER}[name])
    oracle.save_pretrained(tmp_path / "old")
    trained(oracle, 1).save_pretrained(tmp_path / "new")
    with open_llm(tmp_path / "new", batch_invariant=True) as fresh:
        expected = answers(fresh)
    check_logprobs(oracle, expected)
    stored = load_file(tmp_path / "new" / "model.safetensors")
    with open_llm(tmp_path / "old", batch_invariant=True) as llm:
        assert answers(llm) != expected
        assert loader(llm)(stored.items()) == set(stored)
        assert answers(llm) == expected
    with open_llm(tmp_path / "old", batch_invariant=True) as llm:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(tmp_path / "new")})
        assert answers(llm) == expected


@pytest.mark.parametrize(
    "name",
    [
        *("lfm2 moe", "nemotron h", "falcon h1, factors, normed behind the gate, biases"),
        "mamba2",
    ],
)
def test_the_weights_of_layers_with_states_are_exchanged_too(name: str, tmp_path: Path) -> None:
    """Convolutions, decays and what is put in another order; branches that are layers in files."""
    oracle = random_model(WITH_STATES[name])
    oracle.save_pretrained(tmp_path / "old")
    trained(oracle, 1).save_pretrained(tmp_path / "new")
    stored = load_file(tmp_path / "new" / "model.safetensors")
    with open_llm(tmp_path / "old") as llm:
        before = answers(llm)
        assert loader(llm)(stored.items()) == set(stored)
        after = answers(llm)
    assert after != before
    check_logprobs(oracle, after)


NAMED_OTHERWISE = [
    *("mixtral", "qwen3 moe", "granite moe, every factor and bias", "gpt neox", "ernie4_5 moe"),
    *("exaone_moe", "hy_v3", "minimax_m2", "phimoe", "nemotron h"),
]


@pytest.mark.parametrize("name", NAMED_OTHERWISE)
def test_modules_of_a_trainer_may_have_other_names_than_files(name: str, tmp_path: Path) -> None:
    """Trainers send parameters as Transformers' modules hold them: all experts of a layer in one
    tensor, routers and heads under names that no file has. A directory with these names is read,
    too."""
    oracle = random_model({**MORE, **LATER, **NEWEST, **WITH_STATES}[name])
    oracle.save_pretrained(tmp_path / "old")
    named = trained(oracle, 1).state_dict()
    with open_llm(tmp_path / "old") as llm:
        before = answers(llm)
        loader(llm)((name, tensor) for name, tensor in named.items())
        after = answers(llm)
    assert after != before
    check_logprobs(oracle, after)
    (tmp_path / "raw").mkdir()
    copy(tmp_path / "old" / "config.json", tmp_path / "raw")
    untied = {name: tensor.clone() for name, tensor in named.items()}
    save_file(untied, tmp_path / "raw" / "model.safetensors")
    with open_llm(tmp_path / "raw") as raw:
        check_logprobs(oracle, answers(raw))


@pytest.mark.parametrize("name", ["apertus", "ernie4_5 moe"])
def test_weights_of_files_may_have_more_or_fewer_ones_in_their_shapes(
    name: str, tmp_path: Path
) -> None:
    oracle = random_model(LATER[name])
    oracle.save_pretrained(tmp_path / "old")
    trained(oracle, 1).save_pretrained(tmp_path / "new")
    stored = load_file(tmp_path / "new" / "model.safetensors")
    with open_llm(tmp_path / "old") as llm:
        assert loader(llm)(stored.items()) == set(stored)
        check_logprobs(oracle, answers(llm))


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": None, "quantization": "int8"},
        {"dtype": "bfloat16"},
        {"batch_invariant": False},
        {"batch_invariant": True},
    ],
    ids=["int8", "bfloat16", "float32", "invariant"],
)
@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.filterwarnings("ignore:.*bf16.*")
def test_however_weights_are_packed(
    options: dict[str, Any], kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "torch":
        without_native_kernels(monkeypatch)
    pair = make_pair("llama untied, every bias")
    pair.oracle.save_pretrained(tmp_path / "old")
    oracle = trained(pair.oracle, 1)
    oracle.save_pretrained(tmp_path / "new")
    with (
        open_llm(tmp_path / "new", **options) as fresh,
        open_llm(tmp_path / "old", **options) as llm,
    ):
        expected, before = answers(fresh), answers(llm)
        for named in reversed(list(oracle.state_dict().items())):  # one by one, in any order
            llm.apply_model(partial(load_one, named=named))
        assert answers(llm) == expected != before


def load_one(model: Any, named: tuple[str, torch.Tensor]) -> None:
    assert model.load_weights([named]) <= {named[0]}


def without_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.backends.cpu.int8 import TorchInt8
    from quire.backends.cpu.native import kernels
    from quire.executor.cpu import int8_probe
    from quire.session import cpu_weights

    monkeypatch.setattr(kernels, "native_kernels", lambda shape, **how: None)
    monkeypatch.setattr(cpu_weights, "library", lambda: None)
    monkeypatch.setattr(int8_probe, "int8_arithmetic", TorchInt8)


def test_a_tied_head_follows_its_table_in_every_layout(tmp_path: Path) -> None:
    pair = make_pair("llama")
    pair.oracle.save_pretrained(tmp_path)
    table = torch.randn(96, 48)
    name = "model.embed_tokens.weight"
    with open_llm(tmp_path) as llm:
        loader(llm)([(name, table), ("lm_head.weight", torch.zeros(96, 48))])
        found = answers(llm)
    with torch.no_grad():
        pair.oracle.get_input_embeddings().weight.copy_(table)
    check_logprobs(pair.oracle, found)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("model")
    make_pair("llama").oracle.save_pretrained(folder)
    with open_llm(folder) as made:
        yield made


@pytest.mark.parametrize(
    ("named", "match"),
    [
        (("model.layers.0.self_attn.q_prj.weight", torch.ones(96, 48)), "q_proj"),
        (("model.norm.weight", torch.ones(3)), r"\[3\], the model's has \[48\]"),
        (("model.norm.weight", [1.0] * 48), "not a tensor"),
        (("model.norm.weight", torch.ones(48, dtype=torch.int8)), "floats"),
        ((7, torch.ones(48)), "a name and a tensor"),
        (("model.norm.weight",), "a name and a tensor"),
        ("model.norm.weight", "a name and a tensor"),
        (("model.norm.weight", torch.ones(48, device="meta")), "has no numbers"),
        (("model.norm.weight", torch.ones(48).to_sparse()), "dense"),
    ],
)
def test_what_the_model_does_not_have_is_refused(llm: LLM, named: Any, match: str) -> None:
    before = answers(llm)
    with pytest.raises(InvalidRequest, match=match):
        loader(llm)([named])
    assert answers(llm) == before


WRONG = ("model.layers.0.self_attn.q_prj.weight", torch.ones(96, 48))


@pytest.mark.parametrize("several", ["list", "tuple", "dict", "items"])
@pytest.mark.parametrize(
    "wrong",
    [WRONG, ("model.embed_tokens.weight", torch.ones(3, 48)), ("lm", None)],
    ids=["name", "shape", "no tensor"],
)
def test_of_what_can_be_read_twice_nothing_is_written_if_one_is_wrong(
    llm: LLM, several: str, wrong: Any
) -> None:
    before, pairs = answers(llm), [("model.norm.weight", torch.full((48,), 2.0)), wrong]
    given = {"list": pairs, "tuple": (*pairs,), "dict": dict(pairs), "items": dict(pairs).items()}
    with pytest.raises(InvalidRequest):
        loader(llm)(given[several])
    assert answers(llm) == before


def test_an_iterator_is_read_once_and_says_how_far_it_came(llm: LLM) -> None:
    before, asked = answers(llm), list[int]()

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for at, pair in enumerate([("model.norm.weight", torch.full((48,), 2.0)), WRONG]):
            asked.append(at)
            yield pair

    with pytest.raises(InvalidRequest, match="1 tensor before it is written already: give all"):
        loader(llm)(gathered())
    assert asked == [0, 1] and answers(llm) != before
    with pytest.raises(InvalidRequest, match=r"q_proj\.weight'\.\Z"):
        loader(llm)(iter([WRONG]))
    llm.collective_rpc("reload_weights")
    assert answers(llm) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_tensors_of_any_float_dtype_are_taken(llm: LLM, dtype: torch.dtype) -> None:
    """As numbers of the dtype of the model."""
    given = trained(make_pair("llama").oracle, 4).to(dtype).state_dict()
    loader(llm)(given)
    found = answers(llm)
    loader(llm)({name: tensor.float() for name, tensor in given.items()})
    assert answers(llm) == found
    llm.collective_rpc("reload_weights")


def test_names_without_prefix_and_what_is_no_weight(llm: LLM) -> None:
    before = answers(llm)
    rest = ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8))
    assert loader(llm)([("norm.weight", torch.full((48,), 2.0)), rest]) == {"norm.weight"}
    assert answers(llm) != before
    llm.collective_rpc("reload_weights")
    assert answers(llm) == before


def test_weights_are_read_again_from_files_and_from_another_place(llm: LLM, tmp_path: Path) -> None:
    before = answers(llm)
    trained(make_pair("llama").oracle, 2).save_pretrained(tmp_path)
    assert llm.collective_rpc("reload_weights", kwargs={"weights_path": str(tmp_path)}) == [None]
    with open_llm(tmp_path) as fresh:
        assert answers(llm) == answers(fresh) != before
    llm.collective_rpc(lambda worker, path: worker.reload_weights(None, path), args=(None,))
    assert answers(llm) == before


def test_a_gguf_file_takes_the_names_of_hugging_face_too(default_model: Path) -> None:
    """Its rows lie in another order, which its files alone have."""
    params = SamplingParams(temperature=0, max_tokens=4)
    with LLM(str(default_model), quantization="none", kv_cache_memory_bytes=8 << 20) as one:
        before = one.generate("The capital of France is", params, use_tqdm=False)
        loader(one)([("model.layers.0.self_attn.q_proj.weight", torch.zeros(576, 576))])
        broken = one.generate("The capital of France is", params, use_tqdm=False)
        one.collective_rpc("reload_weights")
        after = one.generate("The capital of France is", params, use_tqdm=False)
    assert before[0].outputs[0].token_ids == after[0].outputs[0].token_ids
    assert before[0].outputs[0].token_ids != broken[0].outputs[0].token_ids


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_sleeping_llm_refuses_work_and_wakes_as_it_was(llm: LLM, level: int) -> None:
    before, pool = answers(llm), llm._session.engine.scheduler.pool
    assert not llm.is_sleeping
    llm.sleep(level)
    llm.sleep(level)
    assert llm.is_sleeping and llm.reset_prefix_cache()
    for use in (
        lambda: llm.generate([[1]], use_tqdm=False),
        lambda: list(llm.stream([[1]])),
        lambda: llm.score_continuations([[1]], [[[2]]], use_tqdm=False),
    ):
        with pytest.raises(EngineAsleep, match="wake_up"):
            use()
    llm.wake_up()
    llm.wake_up()
    assert not llm.is_sleeping and pool.num_free == pool.num_blocks
    assert answers(llm) == before


def test_sleep_gives_memory_back(tmp_path: Path) -> None:
    make_pair("llama").oracle.save_pretrained(tmp_path)
    with open_llm(tmp_path) as one:
        executor: Any = one._session.model.executor
        one.sleep(1)
        assert executor._runner is None and executor._model is not None
        one.sleep(2)
        assert executor._model is None
        one.wake_up(tags=["weights"])
        assert executor._runner is None and executor._model is not None
        one.wake_up(tags=["kv_cache"])
        assert executor._runner.cache.shape[2] == one.kv_cache.num_blocks


def test_weights_go_in_between_the_two_wakings(llm: LLM) -> None:
    """As trainers do that share their memory with the engine."""
    before = answers(llm)
    oracle = trained(make_pair("llama").oracle, 5)
    llm.sleep(level=2)
    with pytest.raises(EngineAsleep, match="weights"):
        loader(llm)(oracle.state_dict().items())
    llm.wake_up(tags=["weights"])
    with pytest.raises(EngineAsleep, match="kv_cache"):
        answers(llm)
    loader(llm)(oracle.state_dict().items())
    llm.wake_up(tags=["kv_cache"])
    after = answers(llm)
    assert after != before
    check_logprobs(oracle, after)
    llm.collective_rpc("reload_weights")
    assert answers(llm) == before


def test_the_engine_does_the_same_under_its_own_names(llm: LLM) -> None:
    before, engine = answers(llm), llm.llm_engine
    engine.sleep(1)
    assert engine.is_sleeping() and engine.model_executor.is_sleeping
    engine.wake_up(["weights", "kv_cache"])
    assert not engine.is_sleeping() and engine.reset_prefix_cache()
    model = engine.model_executor.driver_worker.worker.model_runner.model
    assert model.load_weights([]) == set() and engine.collective_rpc("check_health") == [None]
    assert answers(llm) == before


def test_levels_and_tags_are_checked(llm: LLM) -> None:
    for level in (3, -1, True, "1"):
        with pytest.raises(InvalidRequest, match="level"):
            llm.sleep(level)  # type: ignore[arg-type]
    for tags in (["weight"], "weights"):
        with pytest.raises(InvalidRequest, match="tags"):
            llm.wake_up(tags)
    assert not llm.is_sleeping


def test_nothing_of_it_happens_in_the_middle_of_a_call(llm: LLM) -> None:
    norm = [("norm.weight", torch.ones(48))]
    for act in (llm.sleep, llm.wake_up, lambda: loader(llm)(norm)):

        def on_result(index: int, output: Any, act: Any = act) -> None:
            act()

        with pytest.raises(EngineBusy):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False, on_result=on_result)
    assert answers(llm)


def test_the_worker_is_asked_by_name_or_given_to_a_function(llm: LLM) -> None:
    def told(worker: Any, a: int, b: int) -> tuple[int, int, int]:
        return worker.rank, a, b

    assert llm.collective_rpc(told, args=(1,), kwargs={"b": 2}) == [(0, 1, 2)]
    assert llm.collective_rpc("check_health") == [None]
    assert str(llm.collective_rpc(lambda worker: worker.device)[0]) == "cpu"
    for name in ("launch", "_session", "rank"):
        with pytest.raises(NotSupported, match="reload_weights"):
            llm.collective_rpc(name)


def test_a_closed_llm_does_none_of_it(tmp_path: Path) -> None:
    make_pair("llama").oracle.save_pretrained(tmp_path)
    one = open_llm(tmp_path)
    one.close()
    for use in (one.sleep, one.wake_up, lambda: one.collective_rpc("check_health")):
        with pytest.raises(EngineClosed):
            use()
