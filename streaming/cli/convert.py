"""`streaming convert`: a folder of files, or a JSONL file, to an MDS dataset."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from streaming.cli._console import progress, say, size_text
from streaming.converters.folder import FolderSource, find_files
from streaming.converters.jsonl import JsonlSource
from streaming.converters.writing import Source, check_apart, write_dataset
from streaming.errors import ConfigError
from streaming.util.pretty import unpack_strs

__all__ = ["convert"]


def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A folder, or a JSONL file.")],
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="Directory or URL to write to: new or empty.")
    ],
    compression: Annotated[
        str, typer.Option(help='Codec of the shards, such as "zstd", "zstd:7", "gz", or "none".')
    ] = "zstd",
    hashes: Annotated[
        str, typer.Option(help='Hashes to put into the index, such as "sha1,xxh64".')
    ] = "xxh64",
    size_limit: Annotated[
        str, typer.Option(help='Size of a shard before compression, such as "64mb".')
    ] = "64mb",
    columns: Annotated[
        list[str], typer.Option(help="NAME=ENCODING, more of them after commas. May be repeated.")
    ] = [],  # noqa: B006 - typer makes a new list for each call
    pattern: Annotated[
        str | None, typer.Option(help='Which files of a folder: a pattern such as "*.txt".')
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset that is in OUT.")
    ] = False,
) -> None:
    """Write a folder, or a JSONL file, as an MDS dataset: whole, or not at all.

    A FOLDER gives a sample a file, with the columns path (str), text (bytes) and size (int).
    --columns chooses among these and tokens (ndarray:uint8) and says how they are stored:
    text=str for UTF-8 only, text=jpeg for pictures. Hidden files are left out.

    A JSONL FILE gives a sample a line. A key whose values are all texts becomes str; all whole
    numbers of 64 bits, int; all numbers, float64; everything else json: true and false, lists,
    objects, null, a mix, or a key that some lines lack (it reads as None there). --columns sets
    the encodings of the keys it names: bytes takes a text as UTF-8, ndarray:int32 a list.
    """
    check_apart(source, out)
    started = time.perf_counter()
    origin = _open(source, pattern, _parse_columns(columns))
    with progress("Writing", origin.size) as done:
        report = write_dataset(
            origin,
            out,
            compression=None if compression == "none" else compression,
            hashes=unpack_strs(hashes),
            size_limit=size_limit,
            overwrite=overwrite,
            progress=done,
        )
    seconds = time.perf_counter() - started
    say(
        f"Wrote {report.samples} samples ({size_text(report.size)}) in {report.shards} shards to "
        f"{out} in {seconds:.1f} s: {report.samples / seconds:.0f} samples/s, "
        f"{size_text(report.size / seconds)}/s."
    )
    say(f"Look at it with: streaming inspect {out}")


def _open(source: Path, pattern: str | None, columns: dict[str, str]) -> Source:
    if source.is_dir():
        return FolderSource(source, find_files(source, pattern or "*"), columns)
    if not source.is_file():
        raise ConfigError(f"There is no file or folder {source}.")
    if pattern is not None:
        raise ConfigError(f"--pattern chooses among the files of a folder, but {source} is a file.")
    with progress("Reading", source.stat().st_size) as done:
        return JsonlSource(source, columns, done)


def _parse_columns(texts: Sequence[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for text in texts:
        # A comma may also stand within an encoding, as in "x=ndarray:uint8:2,3".
        for pair in re.split(r",(?=[^,=]+=)", text):
            name, found, encoding = pair.partition("=")
            if not (name and found and encoding):
                raise ConfigError(f"--columns takes NAME=ENCODING, but got {pair!r}.")
            columns[name] = encoding
    return columns
