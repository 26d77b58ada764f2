"""`streaming index`: an index beside data that came without one."""

import time
from typing import Annotated, Any

import typer

from streaming.cli._console import say, size_text
from streaming.cli._reading import OPTIONS, options_of
from streaming.errors import ConfigError
from streaming.format.publishing import write_index
from streaming.util.pretty import unpack_str2str, unpack_strs

__all__ = ["index"]


def index(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC", help='A folder or file, a pattern such as "logs/*.csv.gz", or several.'
        ),
    ],
    format: Annotated[
        str | None, typer.Option(help="Format of the files; otherwise their endings say it.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="NAME=ENCODING,...; otherwise they are inferred.")
    ] = None,
    format_options: Annotated[str | None, typer.Option(help=OPTIONS)] = None,
    separator: Annotated[
        str | None, typer.Option(help="What stands between fields of separated text.")
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="NAME,... of the fields, in place of those in the header.")
    ] = None,
    header: Annotated[
        bool, typer.Option("--header/--no-header", help="Whether the first line has names.")
    ] = True,
    quoting: Annotated[
        bool, typer.Option("--quoting/--no-quoting", help="Whether quotes mean anything.")
    ] = True,
    out: Annotated[
        str | None, typer.Option(help="Where the index of Parquet shall be, if not beside them.")
    ] = None,
    allow_schema_mismatch: Annotated[
        bool, typer.Option("--allow-schema-mismatch", help="Parquet files may differ in columns.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the index that is there.")
    ] = False,
) -> None:
    r"""Write an index beside files of JSON lines, separated text or Parquet, so that none is made.

    Reads .jsonl, .ndjson, .csv and .tsv, each also as .gz, .zst or .bz2. The files stay as they
    are; beside each comes a small .meta file, and index.json last. Index again when files change.

    Of .parquet files all footers go into one file, _streaming.arrow, or where --out says; readers
    then look at none but those that are new or changed.

    --separator takes \t for a tab. It, --names, --no-header, --no-quoting and
    --allow-schema-mismatch are short for what --format-options says as JSON.
    """
    options: dict[str, Any] = {}
    if separator is not None:
        options["separator"] = separator.replace("\\t", "\t")
    if names is not None:
        options["names"] = unpack_strs(names)
    if not header:
        options["header"] = False
    if not quoting:
        options["quoting"] = False
    if allow_schema_mismatch:
        options["allow_schema_mismatch"] = True
    said = options_of(format_options) if format_options else {}
    if twice := ", ".join(said.keys() & options.keys()):
        raise ConfigError(f"--format-options says {twice}, and another option does, too.")
    started = time.perf_counter()
    report = write_index(
        source[0] if len(source) == 1 else source,
        format=format,
        columns=None if columns is None else unpack_str2str(columns),
        options={**said, **options},
        overwrite=overwrite,
        out=out,
    )
    seconds = time.perf_counter() - started
    say(
        f"Indexed {report.samples} samples in {report.files} {report.format} files "
        f"({size_text(report.size)}) in {seconds:.1f} s: {report.where}"
    )
