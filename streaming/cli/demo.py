"""`streaming demo`: write, stream, train, interrupt and resume, on real files."""

import shutil
import time
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from streaming.cli._console import progress, say, show, size_text
from streaming.errors import ConfigError
from streaming.util.importing import lazy

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Directory to work in: new or empty.")] = Path("demo"),
    files: Annotated[
        int | None, typer.Option(min=4, help="Use about so many files instead of all.")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Train for about so many steps, in whole epochs.")
    ] = 300,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier demo left in OUT.")
    ] = False,
) -> None:
    """Show the whole way on real data, and leave the dataset to look at.

    The source files of Python's standard library are written as a dataset (zstd, hashed, several
    shards), streamed back shuffled through two workers, and trained on. The training is stopped in
    the middle of an epoch; a new loader with three workers goes on from the saved state, and the
    samples that came before and after are shown to be all of them, each once.
    """
    torch = lazy("torch", "torch")  # Missing, it is named in one sentence.
    from streaming.demo import FIRST_WORKERS, RESUMED_WORKERS, Demo, find_sources

    # So small a model is trained fastest by one thread: several wait for each other, all the
    # longer if other programs want the cores.
    torch.set_num_threads(1)
    # Three workers are the point here, also on two cores.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    _clear(out, overwrite)
    root, sources = find_sources(files)
    stage = Demo(out, root, sources)
    say(f"Input: {len(sources)} source files of {root}, {size_text(stage.size)}")

    started = time.perf_counter()
    with progress("Writing", stage.size) as done:
        written = stage.write(done)
    seconds = time.perf_counter() - started
    stored = sum(path.stat().st_size for path in stage.remote.iterdir())
    say(
        f"Written: {written.shards} shards in {stage.remote}, {size_text(stored)} on disk, "
        f"in {seconds:.1f} s"
    )

    loader = stage.make_loader(FIRST_WORKERS)
    with progress("Streaming", len(sources)) as done:
        speed = stage.stream(loader, done)
    say(
        f"Streamed: {speed.samples} samples, shuffled, {FIRST_WORKERS} workers, nothing cached "
        f"before; each equal to its file"
    )

    epochs = max(3, round(steps / stage.steps_per_epoch))
    with progress("Training", epochs * stage.steps_per_epoch) as done:
        trained = stage.train(loader, epochs, done)
    say(
        f"Trained: {trained.steps} steps, loss {trained.first_loss:.2f} -> {trained.last_loss:.2f} "
        f"nats per byte"
    )
    say(
        f"Interrupted after {trained.before} samples of an epoch, resumed from {stage.state} with "
        f"{RESUMED_WORKERS} workers: {trained.after} more came. Together all {len(sources)}, "
        f"none lost, none repeated."
    )

    table = Table("what", "value", show_header=False)
    for what, value in (
        ("samples/s", f"{speed.samples / speed.seconds:,.0f}"),
        ("MB/s", f"{speed.size / 1e6 / speed.seconds:.1f}"),
        ("time to first batch", f"{speed.first_batch:.2f} s"),
    ):
        table.add_row(what, value)
    show(table)
    say(f"Look at the dataset with: streaming inspect {stage.remote}")


def _clear(out: Path, overwrite: bool) -> None:
    """Make room in `out`: of what is there, only an earlier demo is removed, and only if asked."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is no directory. Choose another --out.")
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names and not overwrite:
        raise ConfigError(f"{out} is not empty. Choose another --out, or add --overwrite.")
    if not names <= {"remote", "cache", "state.json"}:
        raise ConfigError(f"{out} holds more than an earlier demo left. Choose another --out.")
    for name in names - {"state.json"}:
        shutil.rmtree(out / name)
    out.mkdir(parents=True, exist_ok=True)
