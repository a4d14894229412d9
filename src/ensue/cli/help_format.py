"""The layout of `--help`: whole names, flags without a value, filled paragraphs."""

import inspect
import re
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import rich_utils
from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group", "paragraphs"]


def paragraphs(text: str) -> str:
    """Join the lines of each paragraph, which the terminal wraps.

    Text between backquotes is not markup: `[[operations]]` is shown as it is.
    """
    plain = re.sub(r"`[^`]*`", lambda found: escape(found[0]), inspect.cleandoc(text))
    parts = plain.split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


class _Table(Table):
    """A table that never truncates names of options: other columns wrap instead."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row, and keep the columns of names whole."""
        super().add_row(*cells, **options)
        for column, cell in zip(self.columns, cells, strict=False):
            if isinstance(cell, Text) and cell.plain.startswith("-"):
                column.no_wrap = True


rich_utils.Table = _Table  # type: ignore[attr-defined] # Typer has no setting for it.


def _bare_flags(parameters: list[Any]) -> list[Any]:
    """Show flags, `--help` included, without a type of value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, without Typer's prefix on errors."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        return _bare_flags(super().get_params(ctx))


class Group(TyperGroup):
    """The application itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        return _bare_flags(super().get_params(ctx))
