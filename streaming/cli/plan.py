"""`streaming plan`: what an epoch will be, before anything is trained."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table

from streaming.cli._console import plain, say, show, size_text
from streaming.cli._reading import COLUMNS, FORMAT, OPTIONS, VERSION, readings_of
from streaming.errors import ConfigError, EmptyDatasetError
from streaming.explain import Network, Question, WholeEpoch, explain
from streaming.peek import Reading, look
from streaming.plan import OrderSpec, Position
from streaming.sampling import Share, Weight, weigh
from streaming.schedule import Schedule
from streaming.shared.ids import Materialised, temporary_orders
from streaming.table import ShardTable
from streaming.util.pretty import (
    normalize_bytes,
    normalize_count,
    normalize_duration,
    prettify_duration,
    unpack_strs,
)
from streaming.world import World

__all__ = ["plan"]

T = TypeVar("T")
_LISTED = 64  # samples of a batch, or places of a sample, that are shown
_CACHES = ("shards", "file", "row_group")  # With "none" there are no downloads of shards.
_EACH = "Once for all, or once a stream."


def plan(
    datasets: Annotated[
        list[str], typer.Argument(help="Directories, tables or patterns, one a stream.")
    ],
    format: Annotated[list[str] | None, typer.Option(help=f"{FORMAT} {_EACH}")] = None,
    version: Annotated[list[str] | None, typer.Option(help=f"{VERSION} {_EACH}")] = None,
    columns: Annotated[list[str] | None, typer.Option(help=f"{COLUMNS} {_EACH}")] = None,
    format_options: Annotated[list[str] | None, typer.Option(help=f"{OPTIONS} {_EACH}")] = None,
    cache: Annotated[
        str, typer.Option(help="`cache` of the dataset: shards, file or row_group.")
    ] = "shards",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of each node.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="DataLoader workers of each rank.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a rank's batch.")] = 1,
    epoch: Annotated[int, typer.Option(min=0, help="Which epoch.")] = 0,
    proportion: Annotated[
        str | None, typer.Option(help='Shares of the streams, such as "1,2.5".')
    ] = None,
    repeat: Annotated[str | None, typer.Option(help="How often each stream comes.")] = None,
    choose: Annotated[str | None, typer.Option(help="Samples of each stream.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help='Weights that change, as JSON: [{"kind": ..., "points": ...}, ...].'),
    ] = None,
    stream_batch_size: Annotated[
        str | None, typer.Option(help="Batch size of each stream, for batching by stream.")
    ] = None,
    epoch_size: Annotated[str | None, typer.Option(help='Samples of an epoch ("100k").')] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle.")] = False,
    shuffle_algo: Annotated[str | None, typer.Option(help="How; implies --shuffle.")] = None,
    shuffle_seed: Annotated[int, typer.Option(min=0)] = 9176,
    shuffle_block_size: Annotated[
        int | None, typer.Option(min=1, help="How far samples travel.")
    ] = None,
    canonical_nodes: Annotated[
        int | None, typer.Option(min=1, help="Parts of the epoch that are read side by side.")
    ] = None,
    batching: Annotated[str, typer.Option(help="How streams share a batch.")] = "random",
    partition: Annotated[str, typer.Option(help="How an epoch is dealt out.")] = "relaxed",
    sampling_method: Annotated[str, typer.Option()] = "balanced",
    sampling_granularity: Annotated[int, typer.Option(min=1)] = 1,
    replication: Annotated[
        int, typer.Option(min=1, help="Consecutive ranks that see the same samples.")
    ] = 1,
    predownload: Annotated[
        int | None, typer.Option(min=0, help="Samples a worker looks ahead; 8 batches if left out.")
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help='Bytes a second that each node downloads ("500mb").')
    ] = "1gb",
    step_time: Annotated[
        str, typer.Option(help='What a step takes when its samples are there ("0.5s").')
    ] = "0.5s",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to look at for downloads.")
    ] = None,
    quality: Annotated[bool, typer.Option(help="Measure how well it is shuffled.")] = True,
    step: Annotated[
        int | None, typer.Option(min=0, help="Show the samples of this step ...")
    ] = None,
    rank: Annotated[int, typer.Option(min=0, help="... on this rank.")] = 0,
    sample: Annotated[
        int | None, typer.Option(min=0, help="Show in which steps this sample comes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what an epoch will be: samples, batches, downloads, and how well it is shuffled.

    Only indexes are read; for data that came without one, it is made first, and not kept. Ranks
    that see the same samples count as one.
    """
    if cache not in _CACHES:
        raise ConfigError(f"--cache must be one of {', '.join(_CACHES)}, but is {cache!r}.")
    readings = readings_of(len(datasets), format, version, columns, format_options)
    table = _read(datasets, [replace(reading, cache=cache) for reading in readings])
    weights = _weights(
        len(datasets),
        {"proportion": proportion, "repeat": repeat, "choose": choose},
        schedule,
        stream_batch_size,
    )
    sizes = [int(table.samples[table.stream == stream].sum()) for stream in range(len(datasets))]
    size = None if epoch_size is None else _told("epoch-size", normalize_count, epoch_size)
    shares, _ = weigh(weights, sizes, size, shuffle_seed)
    spec = OrderSpec(
        batch_size=batch_size,
        shuffle=shuffle or shuffle_algo is not None,
        shuffle_algo=shuffle_algo or "py1e",
        shuffle_seed=shuffle_seed,
        shuffle_block_size=shuffle_block_size,
        num_canonical_nodes=canonical_nodes,
        sampling_method=sampling_method,
        sampling_granularity=sampling_granularity,
        partition_algo=partition,
        batching_method=batching,
        replication=replication,
    )
    ahead = 8 * batch_size if predownload is None else predownload
    network = Network(
        _told("bandwidth", normalize_bytes, bandwidth),
        _told("step-time", normalize_duration, step_time),
        ahead,
    )
    if not network.bandwidth:
        raise ConfigError("`--bandwidth` must be above 0.")
    question = Question(
        names=datasets,
        network=network,
        steps=steps,
        quality=quality,
        batch=None if step is None else (step, rank),
        sample=sample,
    )
    answer = _answer(spec, table, shares, World(nodes, ranks, workers), epoch, question)
    if as_json:
        print(json.dumps(answer))
    else:
        _show(answer)


def _answer(
    spec: OrderSpec,
    table: ShardTable,
    shares: Sequence[Share],
    world: World,
    epoch: int,
    question: Question,
) -> dict[str, Any]:
    hold = Materialised(temporary_orders())
    try:
        whole = WholeEpoch(
            spec, table, shares, world.replicate(spec.replication), Position(epoch), hold
        )
        return explain(whole, shares, question)
    finally:
        hold.close()


def _read(datasets: Sequence[str], readings: Sequence[Reading]) -> ShardTable:
    tables = []
    for dataset, reading in zip(datasets, readings, strict=True):
        with look(dataset, reading) as peek:
            if not peek.index.samples:
                raise EmptyDatasetError(f"{dataset} holds no samples: there is nothing to plan.")
            tables.append(peek.index.table)
    return ShardTable.concatenate(tables)


def _weights(
    count: int, numbers: dict[str, str | None], schedule: str | None, batch_size: str | None
) -> list[Weight]:
    """The weights of the streams, from lists with one number each."""
    given = {name: text for name, text in numbers.items() if text is not None}
    if len(given) + (schedule is not None) > 1:
        raise ConfigError("Give one of --proportion, --repeat, --choose and --schedule.")
    fields: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, text in given.items():
        for field, word in zip(fields, _cut(name, text, count), strict=True):
            field[name] = (
                _told(name, normalize_count, word) if name == "choose" else _number(name, word)
            )
    if schedule is not None:
        for field, weight in zip(fields, _schedules(schedule, count), strict=True):
            field["proportion"] = weight
    if batch_size is not None:
        for field, word in zip(fields, _cut("stream-batch-size", batch_size, count), strict=True):
            field["batch_size"] = _told("stream-batch-size", normalize_count, word) or None
    return [Weight(**field) for field in fields]


def _cut(name: str, text: str, count: int) -> list[str]:
    words = unpack_strs(text)
    if len(words) != count:
        raise ConfigError(f"--{name} has {len(words)} values for {count} streams: {text!r}.")
    return [word.strip() for word in words]


def _told(name: str, normalize: Callable[[str], T], text: str) -> T:
    """What an option says; its name goes before what is wrong with it."""
    try:
        return normalize(text)
    except ConfigError as error:
        raise ConfigError(f"--{name}: {error}") from error


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"--{name} needs numbers, but has {word!r}.") from None


def _schedules(text: str, count: int) -> list[Schedule | float]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--schedule is not JSON: {error}.") from error
    if not isinstance(found, list) or len(found) != count:
        raise ConfigError(f"--schedule must be a list with a weight for each of {count} streams.")
    return [each if isinstance(each, int | float) else Schedule.from_json(each) for each in found]


def _show(answer: dict[str, Any]) -> None:
    _show_epoch(answer["epoch"], answer["world"])
    if "downloads" in answer:
        _show_downloads(answer["downloads"], answer["world"])
    if "quality" in answer:
        _show_quality(answer["quality"])
    if "batch" in answer:
        _show_batch(answer["batch"])
    if "sample" in answer:
        _show_sample(answer["sample"])


def _show_epoch(epoch: dict[str, Any], world: dict[str, int]) -> None:
    table = Table("stream", "shards", "bytes", "samples", "drawn", "repeat", "share")
    for stream in epoch["streams"]:
        table.add_row(
            plain(stream["name"]),
            f"{stream['shards']:,}",
            size_text(stream["bytes"]),
            f"{stream['samples']:,}",
            f"{stream['drawn']:,}",
            f"{stream['repeat']:.3g}",
            f"{stream['share']:.2%}",
        )
    show(table)
    ranks = world["nodes"] * world["ranks_per_node"]
    least, most = epoch["batches_per_rank"]
    say(
        f"Epoch: {epoch['samples']:,} samples, of which {epoch['left_out']:,} are left out and "
        f"{epoch['repeated']:,} come again, in {epoch['steps']:,} steps of {ranks:,} ranks "
        f"({epoch['global_batch']:,} samples a step; {epoch['short']:,} steps not full)."
    )
    number = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    say(f"Batches of each rank: {number}. Places left empty: {epoch['padding']:,}.")
    for note in epoch["notes"]:
        say(f"Note: {note}")


def _show_downloads(downloads: dict[str, Any], world: dict[str, int]) -> None:
    seen, nodes = downloads["nodes"], world["nodes"]
    of = f"{len(seen)} of {nodes} nodes" if len(seen) < nodes else f"{nodes} nodes"
    say(
        f"Downloads, beginning with nothing ({of}, {downloads['steps']:,} steps): "
        f"{_range(downloads['shards'])} shards and {_sizes(downloads['bytes'])} a node."
    )
    say(
        f"First batch after {_time(downloads['first_batch'])}; all after "
        f"{_time(downloads['seconds'])}, {_time(downloads['waiting'])} of it waiting; "
        f"{downloads['slow_steps']:,} steps wait after the first"
        + (f", the last is step {downloads['last_wait']:,}." if downloads["slow_steps"] else ".")
    )
    say(
        f"Least useful cache limit: {size_text(downloads['cache_limit'])} a node; with less, "
        f"shards are fetched again."
    )
    table = Table("step", "time", "downloaded")
    points = downloads["timeline"]
    for number, seconds, size in points[:: max(len(points) // 10, 1)]:
        table.add_row(f"{number:,}", _time(seconds), size_text(size))
    show(table)


def _show_quality(quality: dict[str, Any]) -> None:
    table = Table("shuffle", "here", "full permutation")
    window = quality["window"]
    for name, here, chance in (
        ("distance of neighbours", quality["distance"], 1.0),
        ("neighbours of one shard", quality["same_shard"], 1.0),
        (f"shards in {window:,} samples", quality["shards"], quality["shards_by_chance"]),
        ("... in the worst of them", quality["shards_least"], None),
        (
            f"error of stream shares in {window:,}",
            quality["stream_error"],
            quality["stream_error_by_chance"],
        ),
        ("chi-square of places", quality["chi_square"], 1.0),
    ):
        table.add_row(name, f"{here:.4g}", "" if chance is None else f"{chance:.4g}")
    show(table)
    say(f"(measured on {quality['samples']:,} samples)")


def _show_batch(batch: dict[str, Any]) -> None:
    say(f"Step {batch['step']:,} on rank {batch['rank']:,}: {len(batch['samples'])} samples")
    names = ("place", "sample", "stream", "shard", "offset", "worker")
    table = Table(*names)
    for drawn in batch["samples"][:_LISTED]:
        table.add_row(*(str(drawn[name]) for name in names))
    show(table)
    if len(batch["samples"]) > _LISTED:
        say(f"... and {len(batch['samples']) - _LISTED} more; --json has them all.")


def _show_sample(sample: dict[str, Any]) -> None:
    found = sample["occurrences"]
    say(f"Sample {sample['sample']:,} comes {len(found)} times")
    if found:
        table = Table("step", "rank", "worker", "place")
        for place in found[:_LISTED]:
            table.add_row(*(f"{place[name]:,}" for name in ("step", "rank", "worker", "place")))
        show(table)


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _sizes(numbers: Sequence[int]) -> str:
    low, high = size_text(min(numbers)), size_text(max(numbers))
    return low if low == high else f"{low} to {high}"


def _time(seconds: float) -> str:
    return prettify_duration(round(seconds, 2), digits=3) if seconds else "0s"
