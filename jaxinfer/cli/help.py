"""`jaxinfer help VERB`: the same as `jaxinfer VERB --help`."""

import click

from jaxinfer.cli.options import GroupedCommand


@click.pass_context
def run(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Print the help of the verb that the words name, of all without any."""
    shown = ctx.find_root()
    for word in words:
        if not isinstance(shown.command, click.Group):
            raise click.UsageError(f"{shown.command_path} has no commands, got {word!r}", shown)
        below = shown.command.get_command(shown, word)
        assert below is not None, "an unknown word is a UsageError"
        shown = click.Context(below, info_name=word, parent=shown)
    click.echo(shown.get_help())
    return 0


command = GroupedCommand(
    "help", run, [click.Argument(["words"], nargs=-1, metavar="[VERB]...")], help="Show the help of VERB."
)
