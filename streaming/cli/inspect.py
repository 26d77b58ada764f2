"""`streaming inspect`: what is in a dataset."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from streaming.cli._console import plain, say, show, size_text
from streaming.cli._reading import COLUMNS, FORMAT, OPTIONS, VERSION, reading_of
from streaming.format import Index, ShardInfo
from streaming.peek import Hidden, PlainPeek, Reading, TablePeek, columns_of, look, state_of

__all__ = ["inspect"]

WIDTH = 72  # characters of a value that are shown


def inspect(
    path: Annotated[str, typer.Argument(help="Directory, file or pattern, also as a URL.")],
    samples: Annotated[int, typer.Option(min=0, help="How many samples to show.")] = 3,
    shards: Annotated[int, typer.Option(min=0, help="How many shards to list.")] = 10,
    format: Annotated[str | None, typer.Option(help=FORMAT)] = None,
    version: Annotated[str | None, typer.Option(help=VERSION)] = None,
    columns: Annotated[str | None, typer.Option(help=COLUMNS)] = None,
    format_options: Annotated[str | None, typer.Option(help=OPTIONS)] = None,
    history: Annotated[
        int, typer.Option(min=0, help="Of a table: how many versions to list.")
    ] = 10,
) -> None:
    """Show a dataset: columns, shards, first samples. Of a table also its versions.

    Nothing is written beside it, and pickled columns are not opened.
    """
    reading = reading_of(format, version, columns, format_options)
    if reading.is_of_table or (reading.format is None and TablePeek.find(path) is not None):
        _inspect_table(path, reading, samples, shards, history)
        return
    with look(path, reading) as peek:
        if isinstance(peek, PlainPeek):
            _inspect_plain(path, peek, samples, shards)
            return
        present = peek.present()
        _show_summary(path, peek.index, present)
        peek.index.check(_show_columns)
        if shards:
            _show_shards(peek.index, present, shards)
        found = 0
        for number, sample in enumerate(peek.samples(samples, present)):
            found += 1
            _show_sample(number, sample)
        if samples and peek.index.samples and not found:
            say("None of the shards is here, so there is no sample to show.")


def _inspect_table(path: str, reading: Reading, samples: int, shards: int, history: int) -> None:
    with TablePeek(path, reading) as peek:
        _show_total(path, f"{peek.table.name}, version {peek.version}", peek.index)
        if history:
            _show_history(peek, history)
        _show_content(peek, samples, shards)


def _inspect_plain(path: str, peek: PlainPeek, samples: int, shards: int) -> None:
    kinds = sorted({info.format for info in peek.index.examples()})
    _show_total(path, f"{', '.join(kinds) or 'data'} without an index", peek.index)
    _show_content(peek, samples, shards)


def _show_total(path: str, what: str, index: Index) -> None:
    size = index.table.zip_bytes.sum() or index.table.raw_bytes.sum()
    say(f"{path}: {what}: {index.samples} samples in {len(index)} shards, {size_text(int(size))}")


def _show_content(peek: PlainPeek, samples: int, shards: int) -> None:
    _show_types(peek.columns)
    if shards:
        _show_files(peek.index, shards)
    for number, sample in enumerate(peek.samples(samples)):
        _show_sample(number, sample)


def _show_history(peek: TablePeek, count: int) -> None:
    table = Table()
    for title in ("version", "time", "rows", "files", "bytes", "what"):
        is_text = title in ("time", "what")
        table.add_column(title, justify="left" if is_text else "right")
    found = peek.history(count + 1)
    for item in found[:count]:
        numbers = (item.rows, item.files, item.size)
        table.add_row(
            f"{'> ' if item.version == peek.version else ''}{item.version}",
            "" if item.time is None else f"{item.time:%Y-%m-%d %H:%M:%S}",
            *("" if number is None else f"{number:,}" for number in numbers),
            _cell(item.what),
        )
    show(table)
    if len(found) > count:
        say("... and older versions")


def _show_summary(path: str, index: Index, present: Mapping[str, int]) -> None:
    raw, packed = int(index.table.raw_bytes.sum()), int(index.table.zip_bytes.sum())
    missing = sum(1 for info in index if not state_of(info, present))
    size = f"{size_text(raw)}, {size_text(packed)} compressed" if packed else size_text(raw)
    say(f"{path}: {index.samples} samples in {len(index)} shards, {size}")
    if missing:
        say(f"{missing} of the {len(index)} shards are not here, or not whole.")


def _show_columns(info: ShardInfo) -> None:
    hashes = sorted({name for raw, _ in info.files for name in raw.hashes})
    say(
        f"{info.format}, compression {info.compression or 'none'}, "
        f"hashes {', '.join(hashes) or 'none'}"
    )
    _show_types(columns_of(info))


def _show_types(columns: Mapping[str, str]) -> None:
    table = Table()
    table.add_column("column")
    table.add_column("encoding")
    for name, encoding in columns.items():
        table.add_row(_cell(name), _cell(encoding))
    show(table)


def _show_shards(index: Index, present: Mapping[str, int], count: int) -> None:
    table = Table()
    for title in ("shard", "samples", "bytes", "compressed", "here"):
        table.add_column(title, justify="left" if title in ("shard", "here") else "right")
    for number in range(min(count, len(index))):
        info = index.shard(number)
        table.add_row(
            _cell(info.files[-1][0].basename),
            str(info.samples),
            f"{info.raw_bytes:,}",
            f"{info.zip_bytes:,}" if info.zip_bytes else "",
            state_of(info, present) or "no",
        )
    show(table)
    if len(index) > count:
        say(f"... and {len(index) - count} shards more")


def _show_files(index: Index, count: int) -> None:
    """The shards of data without an index, by the files that they lie in."""
    table = Table()
    for title in ("file", "samples", "bytes"):
        table.add_column(title, justify="left" if title == "file" else "right")
    for number in range(min(count, len(index))):
        info = index.shard(number)
        name = info.extra.get("key", info.files[-1][0].basename)
        table.add_row(_cell(name), str(info.samples), f"{info.zip_bytes or info.raw_bytes:,}")
    show(table)
    if len(index) > count:
        say(f"... and {len(index) - count} more")


def _show_sample(number: int, sample: Mapping[str, Any]) -> None:
    say(f"sample {number}")
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in sample.items():
        table.add_row(_cell(name), _cell(_brief(value)))
    show(table)


def _brief(value: Any) -> str:
    """One line for a value, however large it is."""
    match value:
        case Hidden():
            return f"({value.reason})"
        case bytes() | str():
            unit = "bytes" if isinstance(value, bytes) else "characters"
            cut = f"... ({len(value):,} {unit})" if len(value) > WIDTH else ""
            return f"{value[:WIDTH]!r}{cut}"
        case np.generic():
            return f"{value}"
        case np.ndarray():
            head = " ".join(map(str, value.ravel()[:12].tolist()))
            cut = " ..." if value.size > 12 else ""
            return f"{value.dtype} {'x'.join(map(str, value.shape))} [{head}{cut}]"
    text = repr(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."


def _cell(text: str) -> Text:
    return Text(plain(text))
