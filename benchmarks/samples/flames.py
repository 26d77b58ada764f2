"""Pictures of where the time of a loader goes, from what py-spy recorded.

    py-spy record -F -s -f raw -o after.txt -- python flames.py run tokens 0 --data FOLDER
    python flames.py draw picture.png before.txt after.txt

`run` reads shuffled epochs of what `bench.py --data FOLDER` wrote. `draw` puts pairs of recordings
one below the other, each pair at one scale: a box is a function, as wide as it and what it calls
take.
"""

import argparse
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["main"]

BATCH = {"text": 256, "tokens": 32}
EPOCHS = {"text": 3, "tokens": 40}
COLORS = {"streaming": "#f4a261", "torch": "#8ab6d6", "": "#d9d9d9"}
DEPTH = 18
LEAST = 0.004  # of the width: boxes below are left out

Tree = dict[str, Any]


def run(kind: str, workers: int, folder: Path) -> None:
    """Read some epochs."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    streaming = import_module("streaming")
    for _ in range(EPOCHS[kind]):
        dataset = streaming.StreamingDataset(
            local=str(folder / "ours" / kind), batch_size=BATCH[kind], shuffle=True
        )
        loader = streaming.StreamingDataLoader(dataset, batch_size=BATCH[kind], num_workers=workers)
        for _ in loader:
            pass


def read(path: Path) -> Counter[tuple[str, ...]]:
    """Stacks and how often they were seen, without imports, and from the loop inwards."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [frame for frame in stack.split(";") if not frame.startswith("process ")]
        if any("importlib" in frame for frame in frames):
            continue
        names = [frame.partition(" (")[0] for frame in frames]
        for start in ("run", "_worker_loop", "_bootstrap_inner"):
            if start in names:
                frames = frames[names.index(start) :]
                break
        stacks[tuple(frame.partition(":")[0].rstrip(")") + ")" for frame in frames)] += int(count)
    return stacks


def draw(recordings: list[Path], picture: Path) -> None:
    """Pairs of recordings, each at the scale of the longer one."""
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    found = [read(path) for path in recordings]
    figure, axes = pyplot.subplots(len(found), 1, figsize=(14, 2.6 * len(found)), squeeze=False)
    for place, (axis, path) in enumerate(zip(axes.flat, recordings, strict=True)):
        stacks = found[place]
        most = max(sum(one.values()) for one in found[place // 2 * 2 : place // 2 * 2 + 2])
        _draw_level(axis, stacks, 0, 0, most)
        axis.set_xlim(0, most)
        axis.set_ylim(DEPTH, 0)
        axis.axis("off")
        axis.set_title(
            f"{path.stem}: {sum(stacks.values()) / most:.0%} of the width", fontsize=9, loc="left"
        )
    figure.tight_layout()
    figure.savefig(picture, dpi=90)


def _draw_level(
    axis: Any, stacks: Counter[tuple[str, ...]], depth: int, left: float, most: int
) -> None:
    """The outermost functions of some stacks, and below each what it calls."""
    if depth == DEPTH:
        return
    groups: dict[str, Counter[tuple[str, ...]]] = {}
    for stack, count in stacks.items():
        if stack:
            groups.setdefault(stack[0], Counter())[stack[1:]] += count
    for frame, inner in sorted(groups.items()):
        width = sum(inner.values())
        if width < LEAST * most:
            continue
        color = next(color for name, color in COLORS.items() if name in frame)
        axis.barh(depth + 0.5, width, 0.92, left, color=color, edgecolor="white", linewidth=0.4)
        letters = int(width / most * 190)
        if letters > 3:
            text = frame[:letters]
            axis.text(left + most * 0.001, depth + 0.5, text, fontsize=6, va="center", clip_on=True)
        _draw_level(axis, inner, depth + 1, left, most)
        left += width


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("kind", choices=BATCH)
    runs.add_argument("workers", type=int)
    runs.add_argument("--data", type=Path, required=True)
    draws = commands.add_parser("draw")
    draws.add_argument("picture", type=Path)
    draws.add_argument("recordings", type=Path, nargs="+")
    args = parser.parse_args()
    if args.command == "run":
        run(args.kind, args.workers, args.data)
    else:
        draw(args.recordings, args.picture)


if __name__ == "__main__":
    main()
