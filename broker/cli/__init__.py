"""The command line: one module per subcommand, imported when it is called.

Start with `entry`. Servers read their arguments themselves, because click takes longer to import
than some originals to start; everything else is in `commands`.
"""

from __future__ import annotations

import errno
import gc
import os
import sys

from broker.cli import signals
from broker.cli.servers import SERVERS, run_server

TYPE_CHECKING = False  # importing `typing` would delay the blocking of signals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

# If the executable, or a symlink to it, has one of these names, it runs that command.
DROP_INS: Final = ("nsqd", "nsqlookupd", "nats-server", "nats-streaming-server")
_COMPLETE: Final = "_TWINWIRE_COMPLETE"  # set by a shell that asks click for completions


def entry() -> None:
    """The entry point of the executable, which may have the name of an original."""
    try:
        _entry()
    except ModuleNotFoundError as error:
        sys.exit(f"twinwire: {_missing(error.name or '')}")
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        sys.exit(f"twinwire: {_too_few_files(error.errno)}")


def _too_few_files(code: int) -> str:
    """The line about a limit of open files that was reached; `code` says which one."""
    if code == errno.ENFILE:
        return "the system has no more open files (fs.file-max)"
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"{most} open files are too few: raise the limit (ulimit -n)"


def _missing(module: str) -> str:
    """What to do about a module that is not there."""
    package = __name__.partition(".")[0]
    if module.partition(".")[0] == package:
        return f"{module} is not compiled for this Python: run `make build`, or `pip install .`"
    return f"{sys.executable} has no module {module}: use the Python that Twinwire is installed for"


def _entry() -> None:
    program = os.path.basename(sys.argv[0])  # noqa: PTH119 - before anything is imported
    args = sys.argv[1:]
    if program in DROP_INS:
        args = [program, *args]
    # An import creates very many objects, which all stay. A server enables garbage collection again
    # when it is ready.
    gc.disable()
    if args and args[0] in SERVERS and _COMPLETE not in os.environ:
        signals.hold()
        code = _run_server(args[0], args[1:])
        if code is not None:
            sys.exit(code)
    from broker.cli.commands import main

    gc.enable()
    main(args=args, prog_name="twinwire")


def _run_server(name: str, args: Sequence[str]) -> int | None:
    """Run a server; end without a traceback after Ctrl-C, or if the reader of its output has
    ended."""
    try:
        return run_server(name, args)
    except KeyboardInterrupt:
        print("\nAborted!", file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
    return 1
