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
    """A group that knows its commands by name and reads only the one that is asked for."""

    known: ClassVar[dict[str, tuple[str, str]]] = {
        "bench": ("broker.cli.bench:bench", "Measure this broker or any NATS or NSQ server."),
        "archive": ("broker.cli.tools.archive:archive", "Write topics to files."),
        "check-config": ("broker.cli.check_config:check_config", "Say what is wrong with a file."),
        "export": (
            "broker.cli.tools.export:export",
            "Write topics to Parquet, Arrow or JSON files.",
        ),
        "import-nsqd": ("broker.cli.imports:import_nsqd", "Take over the data of an nsqd."),
        "import-stan": (
            "broker.cli.imports:import_stan",
            "Take over the data of a NATS Streaming server.",
        ),
        "nats-server": (
            "broker.cli.dropin.nats_server.command:nats_server",
            "Run in the place of nats-server.",
        ),
        "nats-streaming-server": (
            "broker.cli.dropin.nats_streaming.command:nats_streaming_server",
            "Run in the place of nats-streaming-server.",
        ),
        "nsqd": ("broker.cli.dropin.nsqd.command:nsqd", "Run the broker in the place of an nsqd."),
        "nsqlookupd": (
            "broker.cli.dropin.nsqd.command:nsqlookupd",
            "Run in the place of an nsqlookupd.",
        ),
        "forward": ("broker.cli.tools.forward:forward", "Send a topic to NSQ, HTTP or NATS."),
        "pipeline": ("broker.cli.pipeline:pipeline", "Run a Spark job."),
        "pub": ("broker.cli.tools.pub:pub", "Publish arguments or lines to a topic."),
        "serve": ("broker.cli.serve:serve", "Run the broker."),
        "sub": ("broker.cli.tools.sub:sub", "Print what topics get."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names for --help."""
        return sorted(self.known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of one command."""
        if cmd_name not in self.known:
            return None
        module, _, attribute = self.known[cmd_name][0].partition(":")
        gc.disable()  # very many new objects, and all of them stay
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
    """One message broker that NSQ and NATS clients connect to unchanged."""


# Programs whose place we take when the executable, or a link to it, has their name.
DROP_INS = ("nsqd", "nsqlookupd", "nats-server", "nats-streaming-server")


def entry() -> None:
    """The executable: its name may be that of an original."""
    program = Path(sys.argv[0]).name
    if program in DROP_INS:
        main(args=[program, *sys.argv[1:]], prog_name="twinwire")
    else:
        main(prog_name="twinwire")
