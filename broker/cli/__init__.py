"""The command line: one module per subcommand, imported when it is called."""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path
from typing import ClassVar

import click

from broker import __version__


class Commands(click.Group):
    """A group that imports only the command that is called."""

    known: ClassVar[dict[str, tuple[str, str]]] = {
        "bench": ("broker.cli.bench:bench", "Measure a NATS, NSQ or NATS Streaming server."),
        "archive": (
            "broker.cli.tools.archive:archive",
            "Write messages of topics to text files, as a consumer.",
        ),
        "check-config": (
            "broker.cli.check_config:check_config",
            "Check a configuration file and the environment.",
        ),
        "config": (
            "broker.cli.config:config",
            "Print the settings in force and where each comes from, or the defaults.",
        ),
        "export": (
            "broker.cli.tools.export:export",
            "Write the content of topics to Parquet, Arrow or JSON files.",
        ),
        "health": ("broker.cli.health:health", "Ask a broker whether it is healthy, for probes."),
        "import-nsqd": ("broker.cli.imports:import_nsqd", "Import the data folder of an nsqd."),
        "import-stan": (
            "broker.cli.imports:import_stan",
            "Import the file store of a NATS Streaming server.",
        ),
        "nats-server": (
            "broker.cli.dropin.nats_server.command:nats_server",
            "Replace nats-server: its flags and configuration file.",
        ),
        "nats-streaming-server": (
            "broker.cli.dropin.nats_streaming.command:nats_streaming_server",
            "Replace nats-streaming-server: its flags and files.",
        ),
        "nsqd": (
            "broker.cli.dropin.nsqd.command:nsqd",
            "Replace nsqd: its flags and configuration file.",
        ),
        "nsqlookupd": (
            "broker.cli.dropin.nsqd.command:nsqlookupd",
            "Replace nsqlookupd: its flags and configuration file.",
        ),
        "forward": (
            "broker.cli.tools.forward:forward",
            "Send messages of a topic to NSQ, HTTP or NATS.",
        ),
        "pipeline": ("broker.cli.pipeline:pipeline", "Run a Spark job."),
        "pub": ("broker.cli.tools.pub:pub", "Publish arguments or lines of stdin to a topic."),
        "serve": (
            "broker.cli.serve:serve",
            "Run the broker: all protocols, one configuration file.",
        ),
        "sub": ("broker.cli.tools.sub:sub", "Print the messages of topics."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names for --help."""
        return sorted(self.known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of one command."""
        if cmd_name not in self.known:
            return None
        module, _, attribute = self.known[cmd_name][0].partition(":")
        gc.disable()  # an import creates very many objects, and all of them stay
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        finally:
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, without importing what it lists."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.known[name][1]) for name in self.list_commands(ctx)])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twinwire", message="%(prog)s %(version)s")
def main() -> None:
    """A message broker for NSQ, NATS and NATS Streaming clients.

    Start with `twinwire serve`; docs/guides/getting-started.md has the first steps.
    """


# If the executable, or a symlink to it, has one of these names, it runs that command.
DROP_INS = ("nsqd", "nsqlookupd", "nats-server", "nats-streaming-server")


def entry() -> None:
    """The entry point of the executable, which may have the name of an original."""
    program = Path(sys.argv[0]).name
    if program in DROP_INS:
        main(args=[program, *sys.argv[1:]], prog_name="twinwire")
    else:
        main(prog_name="twinwire")
