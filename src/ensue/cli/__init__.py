"""The command line: `ensue`.

Each command is a function in a module of this package; `build` puts them together. Nothing at all is
imported before `main` waits for Ctrl-C, and nothing outside the standard library before it has looked
whether the extra is installed.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typer

__all__ = ["build", "main"]

NEEDED = ("typer", "rich", "pyarrow")
INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        _see_to_streams()
        _look_for_extras()
        build()()
    except KeyboardInterrupt:
        # Commands handle their own; this is the moment while they are being imported.
        pass
    except SystemExit as ended:
        # Typer's word for an interrupt that came while it read the options; it prints nothing.
        if ended.code != INTERRUPTED:
            raise
    else:
        return
    sys.stderr.write("ensue: interrupted\n")
    raise SystemExit(2) from None


def _see_to_streams() -> None:
    """Fill in for standard streams that were closed by whoever started this.

    Their numbers would go to the next file or socket. Who reads or writes there is told as if they were closed; but stderr,
    where that would have to be said, takes everything.
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
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def _look_for_extras() -> None:
    from importlib.util import find_spec  # noqa: PLC0415 - see above

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"ensue: the command line needs {', '.join(missing)}: pip install 'ensue[cli]'\n"
        )
        raise SystemExit(2)


def build() -> "typer.Typer":
    """Return the application with all its commands."""
    from importlib.metadata import version  # noqa: PLC0415 - see above
    from typing import Annotated  # noqa: PLC0415 - as above

    import typer  # noqa: PLC0415 - an extra

    from ensue.cli.auditing import audit  # noqa: PLC0415 - they need the extra
    from ensue.cli.checking import check  # noqa: PLC0415 - as above
    from ensue.cli.demo import demo  # noqa: PLC0415 - as above
    from ensue.cli.experimenting import experiment  # noqa: PLC0415 - as above
    from ensue.cli.helping import Command, Group, paragraphs  # noqa: PLC0415 - as above
    from ensue.cli.pipeline import pipeline  # noqa: PLC0415 - as above
    from ensue.cli.publishing import pub  # noqa: PLC0415 - as above
    from ensue.cli.reporting import report  # noqa: PLC0415 - as above
    from ensue.cli.serving import serve, token  # noqa: PLC0415 - as above
    from ensue.cli.simulation import replay, sim, swarm  # noqa: PLC0415 - as above
    from ensue.cli.status import status  # noqa: PLC0415 - as above
    from ensue.cli.subscribing import sub  # noqa: PLC0415 - as above
    from ensue.cli.transacting import tx  # noqa: PLC0415 - as above

    app = typer.Typer(
        name="ensue",
        cls=Group,
        help="Ordered publish/subscribe: simulate it, search it for faults, and check what it did.",
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
                "--version", help="Print the version and end.", is_eager=True, callback=show_version
            ),
        ] = False,
    ) -> None:
        pass

    # Commands appear in the help in this order. A new one is a line here.
    for function in (
        demo,
        serve,
        status,
        token,
        pub,
        sub,
        tx,
        sim,
        swarm,
        replay,
        check,
        audit,
        report,
        pipeline,
    ):
        app.command(cls=Command, help=paragraphs(function.__doc__ or ""))(function)
    app.add_typer(experiment())
    return app
