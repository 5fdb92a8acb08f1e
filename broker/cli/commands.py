"""The click commands: their help, and all commands that are not servers.

The command line imports this module for everything but the start of a server: see `entry`.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING, ClassVar

import click

from broker import __version__
from broker.base.settings import near
from broker.cli.servers import run_server

if TYPE_CHECKING:
    from collections.abc import Sequence


class Commands(click.Group):
    """A group that imports only the command that is called."""

    known: ClassVar[dict[str, tuple[str, str]]] = {
        "adopt-channels": (
            "broker.cli.imports:adopt_channels",
            "Make JetStream streams of NATS Streaming channels.",
        ),
        "bench": ("broker.cli.bench:bench", "Measure a NATS, NSQ or NATS Streaming server."),
        "archive": (
            "broker.cli.tools.archive:archive",
            "Append new messages of topics to text files, as a consumer.",
        ),
        "check-config": (
            "broker.cli.check_config:check_config",
            "Check a configuration file and the environment before a start.",
        ),
        "completion": (
            "broker.cli.completion:completion",
            "Print the script for completion in a shell.",
        ),
        "config": (
            "broker.cli.config:config",
            "Print the settings in force and where each comes from, or the defaults.",
        ),
        "export": (
            "broker.cli.tools.export:export",
            "Copy the stored records of topics to Parquet, Arrow or JSON files.",
        ),
        "health": ("broker.cli.health:health", "Ask a broker whether it is healthy, for probes."),
        "import-jetstream": (
            "broker.cli.imports:import_jetstream",
            "Import the streams and consumers of a nats-server with JetStream.",
        ),
        "import-nsqd": ("broker.cli.imports:import_nsqd", "Import the data folder of an nsqd."),
        "import-stan": (
            "broker.cli.imports:import_stan",
            "Import the file store of a NATS Streaming server.",
        ),
        "nats-server": ("", "Replace nats-server: its flags and configuration file."),
        "nats-streaming-server": ("", "Replace nats-streaming-server: its flags and files."),
        "nsqd": ("", "Replace nsqd: its flags and configuration file."),
        "nsqlookupd": ("", "Replace nsqlookupd: its flags and configuration file."),
        "forward": (
            "broker.cli.tools.forward:forward",
            "Send messages of a topic to NSQ, HTTP or NATS.",
        ),
        "pipeline": ("broker.cli.pipeline:pipeline", "Run a Spark job."),
        "pub": ("broker.cli.tools.pub:pub", "Publish arguments or lines of stdin to a topic."),
        "support-bundle": (
            "broker.cli.support:support_bundle",
            "Collect settings, statistics and logs for a report of a problem.",
        ),
        "serve": ("", "Run the broker: all protocols, one configuration file."),
        "sub": ("broker.cli.tools.sub:sub", "Print the messages of topics."),
        "top": ("broker.cli.tools.top:top", "Show topics with their rates and depths, like top."),
    }

    # The order of --help; commands in no group come last.
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "Run the broker": ("serve", "check-config", "config", "health", "support-bundle"),
        "Replace an original": ("nats-server", "nats-streaming-server", "nsqd", "nsqlookupd"),
        "Import data": ("import-nsqd", "import-stan", "import-jetstream", "adopt-channels"),
        "Tools": ("top", "pub", "sub", "forward", "archive", "export", "bench", "completion"),
        "Pipelines": ("pipeline",),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All names."""
        return sorted(self.known)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command with this name. UsageError with a suggestion: the name is misspelt."""
        name = args[0]
        if name not in self.known and not name.startswith("-"):
            raise click.UsageError(f"no command {name!r}{near(name, self.known)}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of one command."""
        if cmd_name not in self.known:
            return None
        path = self.known[cmd_name][0]
        if not path:
            return serve() if cmd_name == "serve" else drop_in(cmd_name)
        module, _, attribute = path.partition(":")
        gc.disable()  # an import creates very many objects, which all stay
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        finally:
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands in --help, without importing them."""
        rest = set(self.known) - {name for names in self.groups.values() for name in names}
        for title, names in {**self.groups, "Commands": sorted(rest)}.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, self.known[name][1]) for name in names])


class Passthrough(click.Command):
    """A command that passes its arguments on unchanged, including `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept all arguments."""
        ctx.params["args"] = tuple(args)
        return []


def drop_in(name: str) -> click.Command:
    """A command that replaces an original and reads its arguments itself."""

    def run(args: Sequence[str]) -> None:
        sys.exit(run_server(name, args))

    return Passthrough(name, add_help_option=False, callback=run)


def serve() -> click.Command:
    """`twinwire serve` with the options of OPTIONS."""
    from broker.cli.serve import OPTIONS, start

    flags = {one.flag.strip("-").replace("-", "_"): one for one in OPTIONS}
    options: list[click.Parameter] = [
        click.Option([*one.short, one.flag, name], metavar=one.metavar, help=one.help)
        for name, one in flags.items()
    ]

    def run(**given: str | None) -> None:
        texts = {flags[name].flag: text for name, text in given.items() if text is not None}
        sys.exit(start(texts))

    return click.Command("serve", params=options, callback=run, help=start.__doc__)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twinwire", message="%(prog)s %(version)s")
def main() -> None:
    """A message broker for NSQ, NATS and NATS Streaming clients.

    Start with `twinwire serve`; docs/guides/getting-started.md has the first steps.
    """
