"""The command line: `ensue`.

Each command is a function in a module of this package; `build` assembles them. Nothing is imported
before `main` handles Ctrl-C, and nothing outside the standard library before it has checked that
the extra is installed.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

__all__ = ["build", "main"]

NEEDED = ("typer", "rich", "pyarrow")
INTERRUPTED = 130
COMMANDS = {
    "demo": "demo",
    "serve": "serve",
    "status": "status",
    "topics": "topics",
    "mailboxes": "mailboxes",
    "token": "serve",
    "pub": "pub",
    "sub": "sub",
    "tx": "tx",
    "sim": "sim",
    "swarm": "sim",
    "replay": "sim",
    "check": "check",
    "audit": "audit",
    "report": "report",
    "pipeline": "pipeline",
}
"""Command to its module, in the order in which the help lists them."""


def main() -> None:
    """Run the command line."""
    try:
        _replace_closed_streams()
        _check_extras()
        build(sys.argv[1] if len(sys.argv) > 1 else "")()
    except KeyboardInterrupt:
        # Commands handle Ctrl-C themselves; this one came while they were imported.
        pass
    except SystemExit as ended:
        # Typer exits with this code and prints nothing if interrupted while parsing options.
        if ended.code != INTERRUPTED:
            raise
    else:
        return
    sys.stderr.write("ensue: interrupted\n")
    raise SystemExit(2) from None


def _replace_closed_streams() -> None:
    """Replace standard streams that the parent process has closed.

    Otherwise the next file or socket would get their descriptors. Reading stdin and writing stdout
    still fail as if they were closed; stderr, where that error is printed, discards its input.
    """
    import os  # noqa: PLC0415 - see above

    for number, name, flags, mode in (
        (0, "stdin", os.O_WRONLY, "r"),
        (1, "stdout", os.O_RDONLY, "w"),
        (2, "stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - kept
            setattr(sys, name, stream)


def _check_extras() -> None:
    from importlib.util import find_spec  # noqa: PLC0415 - see above

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"ensue: the command line needs {', '.join(missing)}: pip install 'ensue[cli]'\n"
        )
        raise SystemExit(2)


def _load_orders() -> None:
    from ensue import orders  # noqa: PLC0415 - see above
    from ensue.core.errors import EnsueError  # noqa: PLC0415 - see above

    try:
        orders.load_installed()
    except EnsueError as error:
        sys.stderr.write(f"ensue: {error}\n")
        raise SystemExit(2) from None


def _function(command: str) -> "Callable[..., None]":
    """Import the function of a command."""
    from importlib import import_module  # noqa: PLC0415 - see above

    function: Callable[..., None] = getattr(
        import_module(f"ensue.cli.{COMMANDS[command]}"), command
    )
    return function


def build(command: str = "") -> "typer.Typer":
    """Return the application with one command, or with all if there is no such command.

    Importing all of them takes half a second. The orders of installed packages are registered
    first: commands have options for them.
    """
    from importlib.metadata import version  # noqa: PLC0415 - see above
    from typing import Annotated  # noqa: PLC0415 - as above

    import typer  # noqa: PLC0415 - an extra

    from ensue.cli.help_format import Command, Group, paragraphs  # noqa: PLC0415 - an extra
    from ensue.cli.order_options import with_order_options  # noqa: PLC0415 - as above

    _load_orders()
    app = typer.Typer(
        name="ensue",
        cls=Group,
        help="Ordered publish/subscribe: run it, simulate it, search it for faults, check traces.",
        epilog="Exit codes: 0 valid, 1 a violation, 2 unknown, interrupted or bad input.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"ensue {version('ensue')}")
            raise typer.Exit

    @app.callback()
    def options(
        *,
        _version: Annotated[
            bool,
            typer.Option(
                "--version",
                help="Print the version and exit.",
                is_eager=True,
                callback=show_version,
            ),
        ] = False,
    ) -> None:
        pass

    for name in (command,) if command in COMMANDS else COMMANDS:
        function = _function(name)
        decorate = app.command(cls=Command, help=paragraphs(function.__doc__ or ""))
        decorate(with_order_options(function))
    return app
