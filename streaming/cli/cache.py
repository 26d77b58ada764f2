"""`streaming cache`: what is in a cache directory, and what is going on there."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from streaming.cli._console import plain, say, show, size_text
from streaming.shared.holders import Holder
from streaming.surveying import Survey, find_damaged, survey, verifiable

__all__ = ["cache"]


def cache(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A cache directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the digests of all files with the index.")
    ] = False,
) -> None:
    """Show what a cache directory holds, who uses it, and what they have done.

    Takes no lock and changes nothing, so it may be called beside any number of running jobs. With
    --verify, exits with 1 if a file is damaged, and with 2 if there are files and none of them can
    be compared: data that came without an index have no digests.
    """
    found = survey(directory)
    damaged = [damage for one in found for damage in find_damaged(one.directory)] if verify else []
    able = [verifiable(one.directory) for one in found] if verify else []
    digests, sizes = sum(one.digests for one in able), sum(one.sizes for one in able)
    nothing = sum(one.nothing for one in able)
    if as_json:
        entries = [one.to_json() for one in found]
        report: dict[str, Any] = {"caches": entries, "damaged": [str(path) for path, _ in damaged]}
        if verify:
            report["verified"] = {"digests": digests, "sizes": sizes, "nothing": nothing}
        print(json.dumps(report, indent=2))
    else:
        for one in found:
            _show(one)
        for path, reason in damaged:
            say(f"damaged: {path} {reason}")
        if verify:
            if not damaged and digests + sizes:
                say("No file is damaged, as far as the index tells.")
            say(f"Compared: {digests} files by digest, {sizes} by size alone.")
            if nothing:
                say(f"Not compared: {nothing} files, of which no index here has a digest or size.")
    if damaged:
        raise typer.Exit(1)
    if nothing and not digests + sizes:
        raise typer.Exit(2)


def _show(found: Survey) -> None:
    stats = found.stats
    table = Table(title=plain(str(found.directory)), title_justify="left", show_header=False)
    rows = {
        "from": found.remote or "unknown",
        **(
            {"shards here": f"{found.present} of {found.shards}"}
            if found.has_index
            else {"files here": f"{found.files}; no index says of how many"}
        ),
        "size": _sizes(found),
        "hits, misses": f"{stats.hits}, {stats.misses}",
        "fetched": f"{size_text(stats.fetched_bytes)} with {stats.retries} retries",
        "evicted": f"{stats.evictions} shards, {size_text(stats.evicted_bytes)}",
        "made anew": f"{stats.repairs} damaged shards",
        "waits": f"{stats.num_waits}, {stats.wait_seconds:.1f} s in all; "
        f"half under {stats.wait_p50:.3f} s, 99 % under {stats.wait_p99:.3f} s",
        "users": _holders(found.users),
        "locks": _holders(stats.holders),
        "wrong sizes": _names(found.wrong_size),
        "on their way": _names(found.parts),
    }
    for name, value in rows.items():
        table.add_row(name, plain(value))
    show(table)


def _sizes(found: Survey) -> str:
    packed = f", {size_text(found.zip_bytes)} compressed" if found.zip_bytes else ""
    return f"{size_text(found.raw_bytes)}{packed}"


def _holders(holders: Sequence[Holder]) -> str:
    """Processes, each once, with what they hold if it is more than the lease."""
    names = {
        f"{one.pid} ({'waits for ' if one.is_waiting else ''}{one.lock.name})"
        if one.lock.name != "lease"
        else str(one.pid)
        for one in holders
    }
    return _names(sorted(names))


def _names(names: Sequence[str]) -> str:
    if not names:
        return "none"
    return f"{len(names)}: {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}"
