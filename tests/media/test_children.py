"""Processes that decode: one that dies, hangs or takes too much costs the item it had, they open
nothing, and none is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, AsyncLLM, SamplingParams
from quire.errors import EngineError, InvalidPrompt, NotSupported, QuireError
from quire.inputs.media import children as here
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.images import EncodedImage
from quire.inputs.media.samples import MOST_SECONDS, About, blocks
from quire.inputs.media.videos import FileVideo
from tests.media.abuse import GOOD, encoded
from tests.media.hearing import EARS, HEARING, RATE, tone, wav
from tests.media.test_llava import make
from tests.media.test_videos import mp4
from tests.media.tiny import save_tiny

# A library that does what its bytes say, where soundfile would decode them.
DECODER = """
import ctypes, os, signal, socket, sys, time
import soundfile_itself
from soundfile_itself import *

class SoundFile(soundfile_itself.SoundFile):
    def __init__(self, handle, **options):
        asked = os.pread(handle, 16, 0)
        if asked == b"crash":
            ctypes.string_at(0)
        if asked == b"abort":
            os.abort()
        if asked == b"leave":
            os._exit(3)
        if asked == b"spin":
            while True:
                pass
        if asked == b"sleep":
            time.sleep(1000)
        if asked == b"eat":
            self.eaten = [bytes(1 << 26) for _ in range(1000)]
        if asked == b"fetch":
            socket.create_connection(("127.0.0.1", 9))
        if asked == b"open":
            open("/etc/hostname")
        if asked.startswith(b"say "):
            says = {b"nothing": b"{", b"no object": b"[1]", b"objects": b'{"array": ["O", [1]]}'}
            says[b"less"] = b'{"array": ["<f4", [-1]]}'
            says[b"half"] = b'{"array": ["<f4"]}'
            says[b"deep"] = b"[" * 100_000
            says[b"endless"] = b"x" * (1 << 20)
            says[b"pixels"] = b'{"array": ["|u1", [1]]}\\n1{"last": false}'
            says[b"twice"] = b'{"found": {}}\\n{"found": {}}'
            said = says[asked[4:]] + b"\\n"
            socket.socket(fileno=0).sendall(said)
            time.sleep(1000)
        if asked == b"secrets":
            raise ValueError(" ".join(sorted(os.environ)))
        super().__init__(handle, **options)
"""
ENDS = {
    b"crash": "ended its decoder (SIGSEGV)",
    b"abort": "ended its decoder (SIGABRT)",
    b"leave": "ended its decoder (status 3)",
    b"spin": "takes more than 1 s of processor time",
    b"eat": "takes more than 1,024 MiB to decode",
    b"fetch": "Too many open files",
    b"open": "Too many open files",
}


def about(data: bytes | Path, children: MediaChildren) -> About:
    """Asked of a child, whatever is known of the same bytes."""
    return About(**children.one("audio", "about", data, most_seconds=MOST_SECONDS))


@pytest.fixture
def wild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MediaChildren]:
    """Children whose decoder does what its bytes say."""
    soundfile = pytest.importorskip("soundfile")
    itself = Path(soundfile.__file__)
    (tmp_path / "soundfile_itself.py").write_text(itself.read_text(encoding="utf-8"))
    (tmp_path / "soundfile.py").write_text(DECODER)
    paths = [str(tmp_path), str(itself.parent)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("A_TOKEN", "secret")
    monkeypatch.setattr(here, "PATIENCE", 100)  # a busy machine gives little of its time
    with MediaChildren(most=1, seconds=1.0) as made:
        yield made


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def ended(pid: int) -> bool:
    """Gone, or nobody has asked yet how it ended."""
    status = Path(f"/proc/{pid}/stat")
    return gone(pid) or status.read_text().rpartition(")")[2].split()[0] == "Z"


def pids(children: MediaChildren) -> list[int]:
    found = [*children._busy, *(one for some in children._idle.values() for one in some)]
    return [one._process.pid for one in found]


@pytest.mark.parametrize("asked", ENDS, ids=lambda given: given.decode())
def test_what_a_decoder_does_costs_its_item(wild: MediaChildren, asked: bytes) -> None:
    with pytest.raises(InvalidPrompt, match="the sound") as caught:
        about(asked, wild)
    assert ENDS[asked] in str(caught.value)
    assert about(wav(tone(0.2)), wild).frames == 3200
    assert len(pids(wild)) == 1


@pytest.mark.parametrize(
    "said",
    ["nothing", "no object", "objects", "less", "half", "deep", "endless", "pixels", "twice"],
)
def test_what_a_decoder_says_is_not_believed(wild: MediaChildren, said: str) -> None:
    """Whoever takes a decoder over may write anything, and costs the item that did so."""
    with pytest.raises(InvalidPrompt, match="the sound made its decoder say what none says"):
        about(f"say {said}".encode(), wild)
    assert about(wav(tone(0.2)), wild).frames == 3200


def test_time_that_passes_is_a_limit_too(wild: MediaChildren, monkeypatch: Any) -> None:
    monkeypatch.setattr(here, "PATIENCE", 0.5)
    with pytest.raises(InvalidPrompt, match=r"the sound was not decoded within 0.5 s"):
        about(b"sleep", wild)
    with pytest.raises(InvalidPrompt) as caught:
        about(b"secrets", wild)
    assert "PYTHONPATH" in str(caught.value) and "A_TOKEN" not in str(caught.value)


def test_a_dead_decoder_costs_its_row(
    wild: MediaChildren, tmp_path_factory: pytest.TempPathFactory
) -> None:
    family = HEARING["qwen2_audio"]
    made = save_tiny(tmp_path_factory.mktemp("hears"), family.make(), family.added, EARS)
    sounds = [wav(tone(0.2)), b"crash", wav(tone(0.3)), b"abort", tone(0.2)]
    prompts: list[Any] = [
        {"prompt": "Hear <|AUDIO|>", "multi_modal_data": {"audio": sound}} for sound in sounds
    ]
    short = SamplingParams(temperature=0, max_tokens=2)
    with made.llm() as llm:
        outputs = llm.generate(prompts, short, on_error="return", use_tqdm=False)
        left = pids(reader_pool(llm))
        assert left
    assert [output.error is None for output in outputs] == [True, False, True, False, True]
    assert "prompt 1: the sound ended its decoder (SIGSEGV)" in str(outputs[1].error)
    assert all(map(gone, left))


def reader_pool(llm: LLM) -> MediaChildren:
    return llm._session.media.children


def test_all_kinds_come_back_whole(children: MediaChildren) -> None:
    pytest.importorskip("soundfile")
    assert np.array_equal(EncodedImage.of(encoded("PNG"), children).open(), np.asarray(GOOD))
    samples = np.concatenate(list(blocks(wav(tone(3.0)), RATE, children)))
    assert np.abs(samples - tone(3.0)).max() < 1e-4
    [frame] = FileVideo.of(mp4(4), children).frames([3])
    assert frame.size == (64, 48) and np.asarray(frame).mean() == pytest.approx(191, abs=12)


def test_several_work_at_once_and_no_more_than_allowed() -> None:
    data, found = encoded("PNG"), []
    with MediaChildren(most=2) as made:

        def read() -> None:
            for _ in range(5):
                found.append(EncodedImage.of(data, made).open().size)

        threads = [threading.Thread(target=read) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = pids(made)
        assert found == [GOOD.size] * 25 and 1 <= len(left) <= 3
    assert all(map(gone, left))
    with pytest.raises(EngineError, match="closed"):
        EncodedImage.of(data, made)


def test_the_header_of_equal_bytes_is_looked_at_once(monkeypatch: Any) -> None:
    asked: list[str] = []
    monkeypatch.setattr(here, "MOST_HEADERS", 2)
    with MediaChildren(most=1) as made:
        one = made.one

        def noted(kind: str, task: str, data: bytes) -> Any:
            asked.append(task)
            return one(kind, task, data)

        monkeypatch.setattr(made, "one", noted)
        images = [encoded(kind) for kind in ("PNG", "BMP", "PNG", "GIF", "PNG", "BMP")]
        sizes = [EncodedImage.of(data, made).size for data in images]
        assert sizes == [GOOD.size] * 6 and asked == ["about"] * 4  # one was forgotten


def test_headers_do_not_wait_for_what_is_decoded() -> None:
    pytest.importorskip("soundfile")
    with MediaChildren(most=1) as made:
        stream = blocks(wav(tone(30.0)), RATE, made)
        next(stream)
        assert about(wav(tone(0.2)), made).frames == 3200
        assert len(pids(made)) == 2
        assert sum(len(block) for block in stream) > 20 * RATE


def test_a_header_that_takes_long_holds_no_other_prompt(tmp_path: Path, monkeypatch: Any) -> None:
    looked, goes_on = threading.Event(), threading.Event()
    real = MediaChildren.header

    def slow(*given: Any, **about: Any) -> Any:
        looked.set()
        goes_on.wait(60)
        return real(*given, **about)

    monkeypatch.setattr(MediaChildren, "header", slow)
    picture = {"image": encoded("PNG")}
    options: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": 16 << 20}

    async def asked(llm: AsyncLLM, prompt: Any) -> int:
        async for output in llm.generate(prompt, SamplingParams(max_tokens=2, ignore_eos=True)):
            last = output
        return len(last.outputs[0].token_ids)

    async def ask_all(llm: AsyncLLM) -> None:
        seeing = {"prompt": "See <image>", "multi_modal_data": picture}
        waits = asyncio.create_task(asked(llm, seeing))
        while not (looked.is_set() or waits.done()):
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(asked(llm, "Text"), 30) == 2
        assert not waits.done()
        goes_on.set()
        assert await waits == 2
        broken = {"prompt": "See <image>", "multi_modal_data": {"image": b"none"}}
        with pytest.raises(InvalidPrompt, match="prompt 0: the image is in no format"):
            await asked(llm, broken)
        assert not llm._readers

    with AsyncLLM(str(make(tmp_path).path), **options) as llm:
        try:
            asyncio.run(ask_all(llm))
        finally:
            goes_on.set()


def test_a_killed_parent_leaves_no_process() -> None:
    parent = (
        "import io, os; from PIL import Image; "
        "from quire.inputs.media.children import MediaChildren; file = io.BytesIO(); "
        "Image.new('RGB', (9, 9)).save(file, 'PNG'); made = MediaChildren(); "
        "made.one('image', 'about', file.getvalue()); "
        "print(made._idle['image'][0]._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True)
    pid, deadline = int(killed.stdout), time.monotonic() + 20
    while not ended(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert killed.returncode == -9 and ended(pid)


def test_what_is_not_read_to_its_end_leaves_no_process(children: MediaChildren) -> None:
    pytest.importorskip("soundfile")
    with MediaChildren(most=1) as made:
        stream = blocks(wav(tone(30.0)), RATE, made)
        next(stream)
        [busy] = pids(made)
        stream.close()  # type: ignore[attr-defined]
        assert gone(busy) and about(wav(tone(0.2)), made).frames == 3200


def test_a_decoder_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "av.py").write_text("raise ImportError('libavcodec.so: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pytest.importorskip("av")
    with MediaChildren() as made:
        for made.likely in (4, 1):
            with pytest.raises(NotSupported, match="libavcodec.so: no such file"):
                FileVideo.of(b"some", made)
        assert not pids(made)


def test_an_item_goes_to_the_first_that_is_idle(tmp_path: Path, monkeypatch: Any) -> None:
    """And waits for none of those that start for the items behind it."""
    itself = Path(pytest.importorskip("soundfile").__file__)
    sleepy = "import os, time\nif os.path.exists({!r}): time.sleep(60)\n"
    (tmp_path / "soundfile.py").write_text(
        sleepy.format(str(tmp_path / "slow")) + itself.read_text(encoding="utf-8")
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(itself.parent)]))
    with MediaChildren(most=3) as made:
        made.start("audio")
        [ready] = pids(made)
        while made._starting["audio"]:
            time.sleep(0.01)
        (tmp_path / "slow").touch()
        made.likely = 50
        assert about(wav(tone(0.2)), made).frames == 3200
        assert sum(map(len, blocks(wav(tone(0.2)), RATE, made))) == 3200
        begun = pids(made)
        assert ready in begun and len(begun) == 3
        assert dict(made._starting)["audio"] == 2
    assert all(map(gone, begun))


def test_decoders_start_with_the_model_where_media_are_expected(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    family = HEARING["qwen2_audio"]
    made = save_tiny(tmp_path_factory.mktemp("hears"), family.make(), family.added, EARS)
    short = SamplingParams(max_tokens=1)
    with made.llm() as llm:
        llm.generate(["Words alone."], short, use_tqdm=False)
        assert not pids(reader_pool(llm))
    with made.llm(limit_mm_per_prompt={"audio": 2}) as llm:
        [begun] = pids(reader_pool(llm))
        sound = {"prompt": "Hear <|AUDIO|>", "multi_modal_data": {"audio": wav(tone(0.2))}}
        llm.generate(sound, short, use_tqdm=False)
        assert [begun] == pids(reader_pool(llm))
    assert gone(begun)


def test_decoders_go_on_under_another_tokenizer(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    family = HEARING["qwen2_audio"]
    made = save_tiny(tmp_path_factory.mktemp("hears"), family.make(), family.added, EARS)
    sound = {"prompt": "Hear <|AUDIO|>", "multi_modal_data": {"audio": wav(tone(0.2))}}
    short = SamplingParams(temperature=0, max_tokens=4)
    with made.llm(limit_mm_per_prompt={"audio": 2}) as llm:
        [begun], tokenizer = pids(reader_pool(llm)), llm.get_tokenizer()
        [before] = llm.generate(sound, short, use_tqdm=False)
        llm.set_tokenizer(tokenizer)
        [after] = llm.generate(sound, short, use_tqdm=False)
        assert before.outputs[0].token_ids == after.outputs[0].token_ids
        assert [begun] == pids(reader_pool(llm))
    assert gone(begun)


def test_a_decoder_that_no_tokenizer_came_for_ends_with_its_llm(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    family = HEARING["qwen2_audio"]
    made = save_tiny(tmp_path_factory.mktemp("hears"), family.make(), family.added, EARS)
    with made.llm(limit_mm_per_prompt={"audio": 2}, skip_tokenizer_init=True) as llm:
        media = llm._session.model.media
        assert media is not None
        [begun] = pids(media.children)
    assert gone(begun)


def test_loading_that_fails_ends_the_decoder_it_began(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = HEARING["qwen2_audio"]
    made = save_tiny(tmp_path_factory.mktemp("deaf"), family.make(), family.added, EARS)
    begun: list[int] = []
    start = MediaChildren.start

    def remembered(self: MediaChildren, kind: str) -> None:
        start(self, kind)
        begun.extend(pids(self))

    monkeypatch.setattr(MediaChildren, "start", remembered)
    with pytest.raises(QuireError):
        made.llm(limit_mm_per_prompt={"audio": 2}, kv_cache_memory_bytes=1)
    assert begun and all(map(gone, begun))
