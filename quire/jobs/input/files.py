"""Finds the files of an input, each with its format: paths, folders, data sets, the Hub."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

from quire.errors import InvalidOption
from quire.jobs.input.arrow import read_arrow
from quire.jobs.input.delimited import read_delimited
from quire.jobs.input.hub import PREFIX, files_of_hub
from quire.jobs.input.json_array import is_array, read_array
from quire.jobs.input.jsonl import read_jsonl
from quire.jobs.input.packed import is_packed
from quire.jobs.input.rows import BadRow, InputRow
from quire.jobs.input.strict_json import parse

Format = Literal["jsonl", "json", "csv", "tsv", "parquet", "arrow"]
_FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_READERS: dict[Format, Callable[..., Iterator[dict[str, Any] | BadRow | None]]] = {
    "jsonl": read_jsonl,
    "json": read_jsonl,  # of a file that is no array
    "csv": read_delimited,
    "tsv": partial(read_delimited, delimiter="\t"),
    "parquet": read_arrow,  # which tells the two apart by what they begin with
    "arrow": read_arrow,
}
_LONGEST_STATE = 16 << 20  # bytes of a JSON file that describes a saved data set


@dataclass(frozen=True, slots=True)
class InputFile:
    path: Path
    format: Format

    @property
    def is_array(self) -> bool:
        """Whether the file is one JSON array of rows, and not one row per line."""
        return self.format == "json" and is_array(self.path)

    @property
    def is_table(self) -> bool:
        """Whether it has batches of records and not text."""
        return _READERS[self.format] is read_arrow

    def rows(self, wanted: Callable[[int], bool]) -> Iterator[dict[str, Any] | BadRow | None]:
        return (read_array if self.is_array else _READERS[self.format])(self.path, wanted)


def read_rows(
    files: Sequence[InputFile], wanted: Callable[[int], bool] = lambda number: True
) -> Iterator[InputRow]:
    """Every row of every file, numbered; a row that is not wanted comes without its values."""
    number = 0
    for i, file in enumerate(files):
        first = number
        for values in file.rows(lambda n, first=first: wanted(first + n)):  # type: ignore[misc]
            if isinstance(values, BadRow):
                yield InputRow(number, i, number - first, None, values)
            else:
                yield InputRow(number, i, number - first, values)
            number += 1


def find_files(inputs: Sequence[str], format: str | None = None) -> list[InputFile]:
    """The files that `inputs` name, in that order; a folder's in the order of their names."""
    if format is not None and format not in get_args(Format):
        known = ", ".join(get_args(Format))
        raise _refused(f"the format is one of {known}, not {format!r}", format, "format")
    paths = [path for each in inputs for path in _paths(each)]
    return [InputFile(path, _format_of(path, format)) for path in paths]


def _paths(name: str) -> list[Path]:
    if name.startswith(PREFIX):
        return files_of_hub(name)
    path = Path(name)
    if path.is_dir():
        return _in_folder(path)
    if path.exists() and not path.is_file():
        raise _refused(
            f"{name!r} is a pipe or a device, which can be read only once; pipe it in instead: "
            "... | quire run - (and --format if it is no JSONL)",
            name,
        )
    if path.exists():
        return [path]
    if found := sorted(glob.glob(name, recursive=True)):
        return [file for each in found for file in _paths(each)]
    raise _refused(
        f"there is no input {name!r}. Give a file (JSON, CSV, TSV, Parquet, Arrow), a folder of "
        f'such files, a pattern ("data/*.jsonl"), "-" for stdin, or {PREFIX}owner/name:split for '
        "the Hub.",
        name,
    )


def _in_folder(folder: Path) -> list[Path]:
    """The files of a data set that was saved to disk, or all files of one known kind."""
    if (folder / "dataset_dict.json").exists():
        splits = _saved(folder, "dataset_dict.json", lambda found: list(map(str, found["splits"])))
        raise _refused(
            f"{folder} holds several splits; give one: "
            + ", ".join(str(folder / split) for split in splits),
            str(folder),
        )
    if (folder / "state.json").exists():
        names = _saved(
            folder, "state.json", lambda found: [str(f["filename"]) for f in found["_data_files"]]
        )
        for name in names:
            if Path(name).name != name:  # a data set lies in its own folder
                raise _not_saved(folder / "state.json", f"{name[:100]!r} is no file beside it")
        return [folder / name for name in names]
    # Hidden files are left out, as by a shell's pattern: macOS puts "._a.csv" beside "a.csv".
    seen = (path for path in folder.iterdir() if not path.name.startswith("."))
    found = sorted(path for path in seen if _suffix(path) in _FORMATS)
    kinds = {_READERS[_FORMATS[_suffix(path)]] for path in found}
    if len(kinds) != 1:
        what = "no file of a known kind" if not kinds else f"files of {len(kinds)} kinds"
        raise _refused(
            f"the folder {folder} holds {what}; give the files themselves, or a pattern such as "
            f'"{folder}/**/*.parquet"',
            str(folder),
        )
    return found


def _saved(folder: Path, name: str, read: Callable[[Any], list[str]]) -> list[str]:
    """The names that a JSON file of a saved data set lists."""
    with open(folder / name, "rb") as file:
        data = file.read(_LONGEST_STATE + 1)
    try:
        if len(data) > _LONGEST_STATE:
            raise ValueError(f"it is longer than {_LONGEST_STATE} bytes")
        return read(parse(data.decode()))
    except (ValueError, TypeError, LookupError) as error:
        raise _not_saved(folder / name, f"{type(error).__name__}: {error}") from None


def _not_saved(path: Path, reason: str) -> InvalidOption:
    return _refused(
        f"{path} is not what `datasets` writes ({reason}); give the files themselves", str(path)
    )


def _refused(why: str, value: str, parameter: str = "input") -> InvalidOption:
    return InvalidOption(why, parameter=parameter, value=value)


def _suffix(path: Path) -> str:
    """The ending that tells the format: ".jsonl" of "a.jsonl.gz"."""
    return Path(path.stem if is_packed(path) else path.name).suffix.lower()


def _format_of(path: Path, given: str | None) -> Format:
    if given is not None:
        return cast(Format, given)  # find_files has looked
    suffix = _suffix(path)
    if suffix not in _FORMATS:
        raise _refused(
            f"the ending of {path.name!r} tells no format; name it with --format "
            f"({', '.join(get_args(Format))}), or write the rows to a file of such a kind",
            str(path),
        )
    return _FORMATS[suffix]
