"""`streaming clean`: what dead runs have left goes."""

from pathlib import Path
from typing import Annotated

import typer

from streaming.cli._console import say
from streaming.util.shared import clean as remove

__all__ = ["clean"]


def clean(
    caches: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Cache directories to look through as well."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
) -> None:
    """Remove what your dead runs of this library and of mosaicml-streaming have left.

    That is blocks in /dev/shm and lock files in the temporary directory that no process uses,
    directories of runs and of `streaming index` without their process, and, in the caches named,
    parts of files, and deletion vectors of versions of tables that nobody reads. Nothing of a
    living run goes, so it may be called at any time. Shards that were cached stay.
    """
    found = remove(caches or (), is_dry=dry_run)
    for path in found:
        say(f"{'would remove' if dry_run else 'removed'} {path}")
    if not found:
        say("Nothing to remove.")
