"""The names scripts import exist, cost nothing to import, and say so when they are not built."""

from __future__ import annotations

import base64
import importlib
import io
import logging
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quire
from docs import render_api
from quire.base.notes import note, warn
from quire.compat import MODULES, OURS
from quire.errors import InvalidRequest, NotSupported, QuireError, QuireWarning
from quire.options import parse_options
from quire.safe_text import one_line

ROOT = Path(__file__).parent.parent
TOP_NAMES = (
    "SamplingParams PoolingParams LLMEngine AsyncLLMEngine AsyncLLM EngineArgs AsyncEngineArgs "
    "PromptType TextPrompt TokensPrompt RequestOutput CompletionOutput PoolingOutput "
    "PoolingRequestOutput EmbeddingOutput EmbeddingRequestOutput ClassificationOutput "
    "ClassificationRequestOutput ScoringOutput ScoringRequestOutput ModelRegistry "
    "initialize_ray_cluster Job QuireError InvalidBatch EngineAsleep InvalidGrammar GrammarFailed "
    "ProcessorFailed __version__ __version_tuple__"
)
TOP = TOP_NAMES.split()
BY_MODULE = {
    "sampling_params": "SamplingParams BeamSearchParams StructuredOutputsParams "
    "GuidedDecodingParams RequestOutputKind RepetitionDetectionParams SamplingType",
    "outputs": "RequestOutput CompletionOutput PoolingOutput EmbeddingRequestOutput",
    "logprobs": "Logprob FlatLogprobs PromptLogprobs SampleLogprobs",
    "inputs": "TextPrompt TokensPrompt PromptType token_inputs zip_enc_dec_prompts",
    "entrypoints.llm": "LLM RequestOutput PromptType UsageContext Counter SamplingParams",
    "lora.request": "LoRARequest",
    "exceptions": "VLLMValidationError",
    "v1.metrics.reader": "Metric Counter Gauge Histogram Vector",
    "distributed.parallel_state": "destroy_model_parallel destroy_distributed_environment",
    "tokenizers": "get_tokenizer",
    "renderers.hf": "resolve_chat_template",
    "pooling_params": "PoolingParams",
}


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )


@pytest.mark.parametrize("name", TOP)
def test_every_top_level_name_is_there(name: str) -> None:
    assert getattr(quire, name) is not None
    assert name in quire.__all__ and name in dir(quire)


@pytest.mark.parametrize("module", BY_MODULE)
def test_every_module_carries_the_names_scripts_import(module: str) -> None:
    found = importlib.import_module(f"quire.{module}")
    for name in BY_MODULE[module].split():
        value = getattr(found, name)
        assert getattr(quire, name, value) is value


def test_functions_that_make_dicts_of_prompts_make_what_prompts_may_be() -> None:
    data: Any = importlib.import_module("quire.inputs.data")
    from quire.inputs.encoder_prompts import as_one_prompt

    assert data.PromptInputs is quire.PromptType
    sound = {"prompt": "", "multi_modal_data": {"audio": "sound"}}
    made = data.zip_enc_dec_prompts([sound, sound], ["a", [1, 2]], {"rate": 8})
    assert data.to_enc_dec_tuple_list(made)[1][1] == [1, 2]
    media = {"multi_modal_data": {"audio": "sound"}, "mm_processor_kwargs": {"rate": 8}}
    assert as_one_prompt(made[0]) == {"prompt": "a", **media}
    assert as_one_prompt(made[1]) == {"prompt_token_ids": [1, 2], **media}
    assert sound == {
        "prompt": "",
        "multi_modal_data": {"audio": "sound"},
    }  # of the caller, unchanged
    with pytest.raises(ValueError, match="shorter"):
        data.zip_enc_dec_prompts([sound, sound], ["a"])


def test_the_llm_is_exported() -> None:
    from quire.llm import LLM

    assert quire.LLM is LLM


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        quire.no_such_name  # noqa: B018


def test_validation_errors_have_the_name_scripts_catch() -> None:
    from quire.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError) as caught:
        quire.SamplingParams(top_p=2.0)
    assert (caught.value.parameter, caught.value.value) == ("top_p", 2.0)
    assert VLLMValidationError is InvalidRequest


def test_asyncllm_has_the_module_name_scripts_import() -> None:
    from quire.v1.engine.async_llm import AsyncLLM

    assert AsyncLLM is quire.AsyncLLM


def test_the_other_unbuilt_names_say_so_too() -> None:
    with pytest.raises(NotSupported, match="Ray"):
        quire.initialize_ray_cluster()
    from quire.distributed.utils import StatelessProcessGroup
    from quire.distributed.weight_transfer.nccl_engine import NCCLTrainerSendWeightsArgs

    with pytest.raises(NotSupported, match="load_weights takes named tensors"):
        NCCLTrainerSendWeightsArgs(packed=True)
    with pytest.raises(NotSupported, match="colocate"):
        StatelessProcessGroup.create(host="h", port=1, rank=0, world_size=2)


def test_what_trainers_patch_while_they_make_an_llm_is_there() -> None:
    from unittest.mock import patch

    worker = "quire.worker.worker.Worker"
    with patch(f"{worker}._assert_memory_footprint_increased_during_profiling") as patched:
        assert patched is not None


def test_requests_for_adapters_and_poolers_can_be_made() -> None:
    one, same = quire.LoRARequest("a", 1, "/path"), quire.LoRARequest("a", 2)
    assert one == same and hash(one) == hash(same)
    assert (one.name, one.adapter_id, one.path) == ("a", 1, "/path")
    with pytest.raises(InvalidRequest):
        quire.LoRARequest("a", 0)
    params = quire.PoolingParams(dimensions=8)
    assert params.clone() == params
    with pytest.raises(InvalidRequest):
        quire.PoolingParams(dimensions=0)
    older: Any = quire
    with pytest.raises(TypeError, match="It is lora_path here"):
        older.LoRARequest("a", 1, lora_local_path="/path")
    with pytest.raises(TypeError, match="It is use_activation here"):
        older.PoolingParams(normalize=True)


def test_importing_quire_takes_under_a_tenth_of_a_second() -> None:
    code = (
        "import sys, time; t = time.process_time(); import quire; "
        "t = time.process_time() - t; "
        "print(t, *(m for m in ('torch', 'transformers', 'numpy', 'tokenizers') "
        "if m in sys.modules))"
    )
    # The fastest of a few, since other work on the machine says nothing about the import.
    best = min(_first_number(run(code).stdout) for _ in range(5))
    assert best < 0.1


def _first_number(line: str) -> float:
    seconds, *loaded = line.split()
    assert loaded == []
    return float(seconds)


def test_importing_the_llm_and_the_params_loads_no_torch() -> None:
    unused = {"torch", "transformers", "asyncio", "quire.session.engine_args"}
    code = (
        "import sys; from quire import LLM, SamplingParams, RequestOutput; "
        "SamplingParams(temperature=0.5).checked_copy(); "
        f"print(sorted({unused} & set(sys.modules)))"
    )
    assert run(code).stdout == "[]\n"


def test_parameters_outputs_and_options_need_nothing_but_python() -> None:
    code = (
        "import sys; from quire import SamplingParams, RequestOutput, EngineArgs; "
        "EngineArgs('m'); print('numpy' in sys.modules)"
    )
    assert run(code).stdout == "False\n"


def test_a_template_is_found_or_absent() -> None:
    from quire.renderers.hf import resolve_chat_template

    class Fake:
        chat_template: str | None = "{{ x }}"

        def get_chat_template(self, given: str | None, tools: Any = None) -> str | None:
            return given or self.chat_template

    tokenizer = Fake()
    assert resolve_chat_template(tokenizer, None, None, model_config=None) == "{{ x }}"
    assert resolve_chat_template(tokenizer, "mine") == "mine"
    tokenizer.chat_template = None
    assert resolve_chat_template(tokenizer) is None


def test_a_tokenizer_comes_without_its_model(default_model: Path) -> None:
    from quire.tokenizers import get_tokenizer

    tokenizer = get_tokenizer(default_model, trust_remote_code=True)
    assert tokenizer.decode(tokenizer("Hello, world")["input_ids"]) == "Hello, world"
    assert "message" in tokenizer.chat_template
    others: list[dict[str, Any]] = [{"tokenizer_mode": "slow"}, {"padding_side": "left"}]
    for other in others:
        with pytest.raises(NotSupported, match=next(iter(other))):
            get_tokenizer(default_model, **other)


def test_the_api_page_is_what_the_tables_render() -> None:
    assert render_api.PAGE.read_text(encoding="utf-8") == render_api.render(), (
        "docs/api.md is out of date. Run: python -m docs.render_api"
    )


# ------------------------------------------------------------------------------ notes


# Another process, because pytest itself configures logging.
NOTE = "from quire.base.notes import note; note('dtype float32\\nforged \\x1b[31mline\\u2028')"


def test_a_note_is_one_line_on_stderr() -> None:
    done = run(NOTE, QUIRE_LOG="")
    assert done.stdout == ""
    assert done.stderr == "quire: dtype float32\\nforged \\x1b[31mline\\u2028\n"


def test_notes_can_be_silenced() -> None:
    done = run(NOTE, QUIRE_LOG="error")
    assert (done.stdout, done.stderr) == ("", "")


def test_a_program_that_configured_logging_decides_itself() -> None:
    done = run("import logging; logging.basicConfig(); " + NOTE, QUIRE_LOG="")
    assert (done.stdout, done.stderr) == ("", "")
    done = run("import logging; logging.basicConfig(level=20); " + NOTE, QUIRE_LOG="")
    assert done.stderr.startswith("INFO:quire:dtype float32")


def test_notes_go_where_the_program_logs(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, logger="quire"):
        note("100 % done")
    assert [r.getMessage() for r in caplog.records] == ["100 % done"]
    assert capsys.readouterr() == ("", "")


def test_a_warning_points_at_the_callers_line() -> None:
    with pytest.warns(QuireWarning, match="careful") as caught:
        warn("careful\nhere")
    assert str(caught[0].message) == one_line("careful\nhere")
    assert caught[0].filename == __file__


def test_modules_that_scripts_know_have_the_names_they_import() -> None:
    from importlib import import_module

    from quire.compat import MODULES

    for name, homes in MODULES.items():
        module = import_module(f"quire.{name}")
        for home, names in homes.items():
            for one in names.split():
                known, _, own = one.rpartition("=")
                there = getattr(import_module(f"quire.{home}"), own)
                assert getattr(module, known or own) is there
    assert import_module("quire.exceptions").VLLMError is QuireError


@pytest.mark.parametrize(
    "line",
    [
        "import quire.v1.nothing",
        "import quire.nothing",
        "from quire.utils import nothing",
        "from quire.config import nothing",
        "from quire.sampling_params import nothing",
        "from quire import nothing",
    ],
)
def test_what_scripts_will_not_find_is_said(line: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"quire[\w.]*\.nothing is not among what"):
        exec(line)
    assert not hasattr(importlib.import_module("quire.utils"), "nothing")


def test_whoever_asks_whether_there_is_a_module_is_answered() -> None:
    assert importlib.util.find_spec("quire.nothing") is None
    assert importlib.util.find_spec("quire.utils.nothing") is None
    assert importlib.util.find_spec("quire.lora.request") is not None


def test_names_of_what_is_not_built_are_imported_and_refuse_when_used() -> None:
    from quire.compat.not_built import REFUSED

    known = {name for homes in [*MODULES.values(), *OURS.values()] for name in _names_of(homes)}
    assert {name for names in REFUSED.values() for name in names.split()} <= known

    asset = importlib.import_module("quire.assets.image").ImageAsset
    with pytest.raises(NotSupported, match=r"ImageAsset is not built\. .*allowed_media_domains"):
        asset("cherry_blossom")
    config = importlib.import_module("quire.config")
    assert config.CacheConfig is importlib.import_module("quire.compat.not_built").CacheConfig
    with pytest.raises(NotSupported, match=r"CacheConfig is not built\. Say it as options"):
        config.CacheConfig(block_size=16)
    assert not hasattr(config, "nothing")


def _names_of(homes: Mapping[str, str]) -> list[str]:
    return homes.get("compat.not_built", "").split()


AS_VLLM = """
import sys, quire
{alias}
import importlib.metadata, importlib.util
import vllm, vllm.engine.arg_utils, vllm.lora.request
from vllm.sampling_params import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.async_llm import AsyncEngineArgs, AsyncLLM
assert SamplingParams is quire.SamplingParams is vllm.SamplingParams
assert EngineArgs is quire.EngineArgs is AsyncEngineArgs
assert sys.modules["vllm.lora.request"] is sys.modules["quire.lora.request"]
assert sys.modules["quire.sampling_params"].__spec__.name == "quire.sampling_params"
assert importlib.util.find_spec("vllm") is not None
assert importlib.metadata.version("vllm") == "0.25.0"
assert "vllm" in importlib.metadata.packages_distributions()
print(vllm.__version__)
try:
    import vllm.nothing
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("alias", "version"),
    [('sys.modules["vllm"] = quire', quire.__version__), ("import quire.compat.as_vllm", "0.25.0")],
)
def test_libraries_that_import_vllm_find_quire(alias: str, version: str) -> None:
    said = run(AS_VLLM.replace("{alias}", alias)).stdout.splitlines()
    assert said[0] == version and "vllm.nothing is not among" in said[1] and len(said) == 2


def test_the_page_for_clients_lists_every_module() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    assert [name for name in MODULES if f"`{name}`" not in page] == []


def test_pictures_and_seeds_of_scripts_are_what_their_names_say() -> None:
    pillow = pytest.importorskip("PIL.Image")
    import torch

    set_random_seed = importlib.import_module("quire.model_executor.utils").set_random_seed
    convert_image_mode = importlib.import_module("quire.multimodal.image").convert_image_mode
    utils = importlib.import_module("quire.multimodal.utils")

    clear = pillow.new("RGBA", (3, 2), (255, 0, 0, 0))
    assert convert_image_mode(clear, "RGB").getpixel((0, 0)) == (255, 255, 255)
    assert convert_image_mode(clear, "L").mode == "L"
    head, _, written = utils.encode_image_url(clear).partition(",")
    assert head == "data:image/png;base64" and written == utils.encode_image_base64(clear)
    read = pillow.open(io.BytesIO(base64.b64decode(written)))
    assert (read.size, read.mode, read.getpixel((2, 1))) == ((3, 2), "RGB", (255, 255, 255))
    kept = utils.encode_image_base64(clear, image_mode=None)
    assert pillow.open(io.BytesIO(base64.b64decode(kept))).mode == "RGBA"

    drawn = []
    for _ in range(2):
        set_random_seed(7)
        drawn.append((random.random(), np.random.random(), torch.rand(1).item()))  # noqa: NPY002
    assert drawn[0] == drawn[1]


def test_objects_for_options_say_what_they_were_given() -> None:
    from quire.config import CompilationConfig, KVTransferConfig, PoolerConfig

    with pytest.warns(QuireWarning, match="compilation_config=CompilationCo"):
        parse_options({"compilation_config": CompilationConfig(3, use_inductor=False)})
    with pytest.raises(NotSupported, match="KVTransferCon"):
        parse_options({"kv_transfer_config": KVTransferConfig(kv_role="kv_both")})
    with pytest.raises(NotSupported, match="encode"):
        parse_options({"pooler_config": PoolerConfig(task="embed")})


def test_a_program_is_run_with_vllm_as_a_name_of_quire(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom vllm import LLM\nfrom vllm.utils import FlexibleArgumentParser\n"
        "parser = FlexibleArgumentParser()\nparser.add_argument('--max-model-len', type=int)\n"
        "parser.add_argument('--own_name')\n"
        "print(parser.parse_args(), LLM.__module__, __name__)\n"
    )
    command = [sys.executable, "-m", "quire.compat.as_vllm", str(script)]
    ran = subprocess.run(
        [*command, "--max_model_len=7", "--own_name", "a_b"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "Namespace(max_model_len=7, own_name='a_b') quire.llm __main__\n"


@pytest.mark.parametrize("words", [["--config", "engine.yaml"], ["--config=engine.yaml"]])
def test_a_file_of_flags_is_not_taken_for_another_flag(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from quire.compat.script_parts import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    parser.add_argument("--config-format")
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert "as flags" in capsys.readouterr().err


def test_a_vllm_that_is_in_use_is_not_replaced() -> None:
    code = """
import sys, types
sys.modules["vllm"] = types.ModuleType("vllm")
import quire, importlib.metadata
try:
    import quire.compat.as_vllm
except ValueError as error:
    print(error)
try:
    import vllm.sampling_params
except ImportError as error:
    print(error)
"""
    refused, absent = run(code).stdout.splitlines()
    assert "imported already" in refused and "No module named 'vllm.sampling_params'" in absent


def test_scripts_read_their_environment_by_the_names_they_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_DP_RANK", "3")
    monkeypatch.setenv("VLLM_USE_V1", "0")
    monkeypatch.delitem(sys.modules, "quire.envs", raising=False)
    envs = importlib.import_module("quire.envs")
    assert (envs.VLLM_DP_RANK, envs.VLLM_USE_V1, envs.VLLM_DP_SIZE) == (3, False, 1)
    network = importlib.import_module("quire.utils.network_utils")
    assert network.get_distributed_init_method("::1", 5) == "tcp://[::1]:5"


def test_scripts_ask_for_the_device_before_they_make_an_llm() -> None:
    import torch

    from quire.platforms import current_platform

    assert current_platform.is_cuda() is torch.cuda.is_available()
    assert current_platform.is_cuda() is not current_platform.is_cpu()
    from quire.utils.network_utils import get_ip, get_open_port

    assert get_ip().count(".") == 3 and 1024 <= get_open_port() < 65536
    assert current_platform.is_rocm() is False and current_platform.device_count() >= 1
