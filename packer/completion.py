"""What a shell offers for a value that is a path or a name: options with words of their own offer those, and paths must be asked for.

    @click.option("--shards", shell_complete=folders)

A shell runs the program at every press of the tab key, so nothing here or before it imports more than click.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and folders."""
    return [CompletionItem(incomplete, type="file")]


def folders(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders alone."""
    return [CompletionItem(incomplete, type="dir")]
