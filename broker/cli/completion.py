"""`twinwire completion`: prints the script for completing commands and options in a shell.

It is separate because each command is a module.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_TWINWIRE_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands and options.

    Bash, in ~/.bashrc: eval "$(twinwire completion bash)". Zsh, in ~/.zshrc: eval "$(twinwire
    completion zsh)". Fish: twinwire completion fish > ~/.config/fish/completions/twinwire.fish.
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "twinwire", _VARIABLE).source())
