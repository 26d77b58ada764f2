"""What the commands share on the screen."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from streaming.util.pretty import prettify_dec_bytes

REFRESH = 0.1  # seconds


def show(what: Table) -> None:
    """Print a table."""
    Console().print(what)


def say(text: str) -> None:
    """Print a line as it is, whatever the width of the screen."""
    print(plain(text))


@contextmanager
def progress(title: str, total: float) -> Iterator[Callable[[float], None]]:
    """Show a bar while the body runs, on a terminal only; it goes when the body is done.

    Yields:
        Is told how much of `total` is done since the last call.
    """
    console = Console(stderr=True)
    shown = time.monotonic()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=False,  # That would be a thread, and the body may fork.
    ) as bar:
        task = bar.add_task(title, total=total)

        def advance(done: float) -> None:
            nonlocal shown
            bar.advance(task, done)
            if time.monotonic() - shown > REFRESH:
                shown = time.monotonic()
                bar.refresh()

        yield advance


def plain(text: str) -> str:
    """A text from a file as one that can't move the cursor or change colours."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def size_text(size: float) -> str:
    """Bytes for people, such as "12.1MB"."""
    return prettify_dec_bytes(int(size), digits=3).upper()
