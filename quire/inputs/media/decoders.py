"""The decoders of media. Each has processes of its own (children.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder of one kind of media, or of formats that the usual decoder lacks."""

    module: str  # the module with its tasks
    kind: str  # of the media that it reads
    package: str
    missing: str  # the error if the package is not installed
    memory: int  # bytes that a process may use beyond those at its start


TRACKS = "M4A, MP4, MOV, AAC, WebM, Matroska, WMA and AMR"
DECODERS = {
    "image": Decoder(
        f"{__package__}.image_files",
        "image",
        "PIL",
        "images need the package pillow: pip install 'quire-llm[vlm]'",
        4 << 30,
    ),
    "audio": Decoder(
        f"{__package__}.sound_files",
        "audio",
        "soundfile",
        "sounds in files and bytes need the package soundfile: pip install 'quire-llm[audio]'; "
        "samples do not",
        1 << 30,
    ),
    "video": Decoder(
        f"{__package__}.video_files",
        "video",
        "av",
        "video files need the package av: pip install 'quire-llm[video]'; frames do not",
        2 << 30,
    ),
    "track": Decoder(
        f"{__package__}.track_files",
        "audio",
        "av",
        f"sounds in {TRACKS} need the package av: pip install 'quire-llm[video]'; or bring them to "
        "WAV, FLAC, Ogg or MP3",
        1 << 30,
    ),
}
# The first bytes of formats that libsndfile cannot decode, and the offset at which they stand.
_BEGINNINGS = (
    (4, b"ftyp"),  # MP4, M4A, MOV, 3GP
    (0, b"\x1aE\xdf\xa3"),  # Matroska, WebM
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),  # WMA
    (0, b"#!AMR"),
)
NUM_FIRST = 26  # how many first bytes `sound_decoder` needs


def sound_decoder(first: bytes) -> str:
    """The name of the decoder for a sound that begins with these bytes."""
    is_track = any(first[at:].startswith(begins) for at, begins in _BEGINNINGS)
    # A FLAC file that was written into a pipe: the length in its header, of 36 bits, is zero.
    is_piped = first[:4] == b"fLaC" and not int.from_bytes(first[18:26].ljust(8, b"1")) % 2**36
    # AAC without a container begins with 12 set bits, one bit of either value, and two zero bits.
    is_adts = len(first) > 1 and first[0] == 0xFF and first[1] & 0xF6 == 0xF0
    return "track" if is_track or is_piped or is_adts else "audio"
