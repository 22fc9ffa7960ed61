"""What images cost beside text: 1,000 prompts over 50 images, and text prompts of the same lengths.

    python benchmarks/media.py --prompts 1000 --images 50
    python benchmarks/media.py --layers 4 --device cpu --prompts 200

A model of SmolVLM's shape (256M; `--layers` of its text) with random weights and the tokenizer of
the default model, or of a tokenizer.json. The prefix cache is off, so that every prompt is computed
whole. The first call prepares and encodes each image once; the second finds them encoded, and is
the one that text is compared with.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIDE, ADDED_TOKENS = 512, 67  # of an image: its tower's 64 rows, and what stands around them
FIRST_ADDED = 49152
ADDED = ("<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>")


def config(num_layers: int) -> dict[str, Any]:
    text = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49280,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": SIDE,
        "patch_size": 16,
    }
    return {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": FIRST_ADDED,
        "scale_factor": 4,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
    }


def write_model(path: Path, num_layers: int, tokenizer: str | None) -> None:
    from tokenizers import AddedToken, Tokenizer

    from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
    from quire.weights.source import locate

    if tokenizer is None:
        made = load_gguf_tokenizer(locate("smollm2").gguf.metadata).backend
    else:
        made = Tokenizer.from_file(tokenizer)
    made.add_special_tokens([AddedToken(token, special=True) for token in ADDED])
    made.save(str(path / "tokenizer.json"))
    edge = {"longest_edge": SIDE}
    seen = {"size": edge, "max_image_size": edge, "do_image_splitting": False}
    (path / "preprocessor_config.json").write_text(json.dumps(seen))
    (path / "config.json").write_text(json.dumps(config(num_layers)))


def prompts_of(num_prompts: int, num_images: int, form: str) -> list[Any]:
    import io

    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (num_images, 16, 16, 3), np.uint8)
    images = [Image.fromarray(one).resize((SIDE, SIDE)) for one in pixels]
    given: list[Any] = list(images)
    if form == "bytes":
        for i, image in enumerate(images):
            file = io.BytesIO()
            image.save(file, "jpeg")
            given[i] = file.getvalue()
    return [
        {
            "prompt": f"Image {i}: <image>" + " Say what it shows, in a few words." * 12,
            "multi_modal_data": {"image": given[i % num_images]},
        }
        for i in range(num_prompts)
    ]


def timed(llm: Any, prompts: list[Any], params: Any) -> tuple[float, list[list[int]]]:
    begun = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begun
    return seconds, [list(output.prompt_token_ids) for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--form", choices=("bytes", "pillow"), default="bytes")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=1, help="of an answer")
    parser.add_argument("--tokenizer", default=None, help="a tokenizer.json")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()

    from quire import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=asked.tokens, ignore_eos=True)
    prompts = prompts_of(asked.prompts, asked.images, asked.form)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), asked.layers, asked.tokenizer)
        options: dict[str, Any] = {"load_format": "dummy", "enable_prefix_caching": False}
        with LLM(folder, device=asked.device, **options) as llm:
            first, ids = timed(llm, prompts, params)
            media = llm._session.engine.scheduler.media
            assert media.num_encoded == asked.images, media.num_encoded
            text = [one["prompt"].replace("<image>", " word" * ADDED_TOKENS) for one in prompts]
            lengths = [list(map(len, some)) for some in (ids, timed(llm, text, params)[1])]
            assert lengths[0] == lengths[1], "text is not as long as what stands for an image"
            pairs = [
                (timed(llm, prompts, params)[0], timed(llm, text, params)[0])
                for _ in range(asked.repeats)
            ]
            assert media.num_encoded == asked.images, media.num_encoded
    num_tokens = sum(map(len, ids))
    seen, read = (min(some) for some in zip(*pairs, strict=True))
    print(f"{asked.prompts} prompts, {num_tokens:,} tokens, {asked.images} images ({asked.form})")
    print(f"first call {num_tokens / first:,.0f} prompt tokens/s, each image encoded once")
    print(f"encoded    {num_tokens / seen:,.0f} prompt tokens/s")
    print(f"text       {num_tokens / read:,.0f} prompt tokens/s")
    print(f"images are read at {read / seen:.0%} of the speed of text")


if __name__ == "__main__":
    main()
