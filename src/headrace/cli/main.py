"""The entry: the app with its commands, and the one place where errors become a line and an exit code.

0  fine, sound        1  done, but something is damaged or was not read        2  could not        130  Ctrl-C
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from headrace._core import __version__
from headrace.cli import cat, convert, inspect, pipeline, pipeline_init, salvage, serve, store, verify
from headrace.errors import HeadraceError
from headrace.server.config.flags import parse

EXIT_COULD_NOT = 2
EXIT_INTERRUPTED = 130
NO_COMMAND = "NoArgsIsHelpError"
"""What typer raises where a command is missing; its text is the help."""
EPILOG = "Exit codes: 0 fine and sound, 1 damaged or not read as a whole, 2 could not be done."

app = typer.Typer(
    name="headrace",
    help="Serve streams to NATS clients; look inside, check, print and save the directories of message brokers.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Serve streams to NATS clients; look inside, check, print and save the directories of message brokers."""


app.command("serve", epilog=EPILOG)(serve.command)
app.command("inspect", epilog=EPILOG)(inspect.inspect)
app.command("verify", epilog=EPILOG)(verify.verify)
app.command("cat", epilog=EPILOG)(cat.cat)
app.command("salvage", epilog=EPILOG)(salvage.salvage)
app.command("convert", epilog=EPILOG)(convert.convert)
app.add_typer(store.app, name="store", epilog=EPILOG)
app.add_typer(pipeline_init.app, name="pipeline", epilog=pipeline.EPILOG)


def main() -> None:
    """What the installed command runs."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. No exception leaves this function."""
    try:
        if arguments and arguments[0] == "serve":
            flags = parse(arguments[1:])
            if not flags.help:
                return serve.serve(flags)
            arguments = ["serve", "--help"]
        code = app(args=list(arguments), prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _close_output()
    except HeadraceError as error:
        return _fail(arguments, type(error).__name__, str(error), getattr(error, "__notes__", ()))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(arguments, "DiskFault", f"{place}{error.strerror or error}")
    except Exception as error:
        usage = getattr(error, "format_message", None)  # how typer says that the command line is wrong
        return _fail_own(arguments, error) if usage is None else _fail_usage(arguments, error, usage())


def _fail_usage(arguments: Sequence[str], error: Exception, usage: str) -> int:
    """The command line is wrong; without a command there is only the help."""
    if type(error).__name__ == NO_COMMAND:
        print(usage, file=sys.stderr)
        return EXIT_COULD_NOT
    command = getattr(getattr(error, "ctx", None), "command_path", "headrace")
    return _fail(arguments, "BadInput", f"{usage} (see {command} --help)")


def _fail_own(arguments: Sequence[str], error: Exception) -> int:
    """A fault of this program."""
    if os.environ.get("HEADRACE_DEBUG"):
        traceback.print_exc()
    text = f"a fault in headrace itself: {type(error).__name__}: {error}; HEADRACE_DEBUG=1 shows where"
    return _fail(arguments, type(error).__name__, text)


def _fail(arguments: Sequence[str], kind: str, message: str, notes: Sequence[str] = ()) -> int:
    """One line on stderr (notes stand in the log above it); with --json an object on stdout."""
    line = " ".join(message.split())
    try:
        if "--json" in arguments:
            problem = {"error": kind, "message": line} | ({"notes": list(notes)} if notes else {})
            print(json.dumps(problem), flush=True)
        print(f"headrace: {line}", file=sys.stderr)
    except OSError:
        pass
    return EXIT_COULD_NOT


def _close_output() -> int:
    """Nobody reads any more: keep the interpreter from complaining about it at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return 0
