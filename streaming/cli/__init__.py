"""The command line, `streaming COMMAND ...`: a file a command, each a parser and one call down."""

import sys
from collections.abc import Callable, Sequence

from streaming.errors import StreamingError
from streaming.util.importing import Registry, lazy

__all__ = ["main"]

commands: Registry[Callable[..., None]] = Registry(
    "command",
    {
        "cache": "streaming.cli.cache:cache",
        "clean": "streaming.cli.clean:clean",
        "demo": "streaming.cli.demo:demo",
        "convert": "streaming.cli.convert:convert",
        "index": "streaming.cli.index:index",
        "inspect": "streaming.cli.inspect:inspect",
        "plan": "streaming.cli.plan:plan",
    },
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 if it did its work, 1 if it could not, 2 if it was called wrongly.

    Args:
        arguments: The words after "streaming"; None: those that the process was started with.
    """
    try:
        app = lazy("typer", "cli").Typer(
            name="streaming",
            help="Write, convert, look at and stream datasets.",
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,  # What is not ours to explain keeps its traceback.
            rich_markup_mode=None,
        )
        for name in commands:
            app.command(name)(commands.get(name))
        app(args=arguments, prog_name="streaming")
    except StreamingError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(reason: str) -> None:
    print(f"streaming: error: {' '.join(reason.split())}", file=sys.stderr)
    sys.exit(1)
