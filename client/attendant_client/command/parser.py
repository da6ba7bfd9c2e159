"""The options of the command. A decoding option that is left out is not sent: the server has its default.

The distribution attendant-seq2seq has further commands, which may not be installed; here are only their names.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NoReturn

import shtab

from attendant_client.client import DEFAULT_CONCURRENCY, DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS
from attendant_client.command import ended_by_interrupts, path_argument, set_variables, suggestion
from attendant_client.command.asking import generate, health, models, remedy, score
from attendant_client.target import with_port
from attendant_client.types import OF_BUNDLE, DecodingFields, Option, OutputFields, RequestOptions, Sampling, options_of
from attendant_client.version import VERSION


@dataclass(frozen=True, slots=True)
class Further:
    """A command that may not be installed.

    Attributes:
        summary: for --help.
        module: its `command(name)` returns a `parser`, and a `main(program, arguments)` that ends the process.
        extras: of the distribution attendant-seq2seq, which the command needs.
    """

    summary: str
    module: str
    extras: str


_TRAINING, _EXPORT = "attendant.training.__main__", "attendant.export.__main__"

FURTHER = {
    "train": Further("train a model from a recipe or from files of pairs", _TRAINING, "cpu,training"),
    "check": Further("inspect training data", _TRAINING, "cpu,training"),
    "evaluate": Further("measure runs and bundles on held-out data", _TRAINING, "cpu,training"),
    "report": Further("write a page about one or several trainings", _TRAINING, "cpu,training"),
    "fetch": Further("build the data that a recipe names", _TRAINING, "cpu,training"),
    "average": Further("average a run's last checkpoints", _TRAINING, "cpu,training"),
    "label": Further("decode sources into pairs to train on", _TRAINING, "cpu,training"),
    "export": Further("turn a run into a verified bundle", _EXPORT, "cpu,export"),
    "import": Further("turn a model of another toolkit into a bundle", _EXPORT, "cpu,export"),
    "verify": Further("check a bundle on this host", _EXPORT, "cpu"),
    "inspect": Further("show a bundle's contents", _EXPORT, "cpu"),
    "sign": Further("sign a bundle", _EXPORT, "cpu,signing"),
    "reference": Further("add reference statistics for drift detection to a bundle", _EXPORT, "cpu,export"),
    "serve": Further("serve bundles over gRPC", "attendant.server.__main__", "cpu"),
    "bench": Further("measure how fast a bundle is served on this host", "attendant.server.bench.command", "cpu"),
}


def load(name: str) -> Any:
    """Returns the command; raises ModuleNotFoundError if it, or a package that it needs, is not installed."""
    return import_module(FURTHER[name].module).command(name)


def run_further(name: str, arguments: Sequence[str]) -> int:
    """Runs the command to the end of the process; returns 2 if a package is missing."""
    try:
        with ended_by_interrupts():
            command = load(name)
        command.main(f"attendant {name}", arguments)
    except ModuleNotFoundError as missing:
        print(f"attendant {name}: {remedy(missing, FURTHER[name].extras)}", file=sys.stderr)
    return 2


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of the installed commands."""
    installed = {}
    for name in FURTHER:
        try:
            installed[name] = load(name).parser
        except ModuleNotFoundError:
            continue
    return installed


SHELLS = ("bash", "zsh", "fish")
PATHS = ("FILE", "BUNDLE", "RUN", "RECIPE", "PEM", "DIRECTORY")
"""The beginnings of metavariables of options that take a path."""


def script(parser: argparse.ArgumentParser, further: Mapping[str, argparse.ArgumentParser], shell: str) -> str:
    """Returns the script for a shell.

    Args:
        parser: of the whole command.
        further: of the subcommands that it contains only by name.
    """
    commands = _commands(parser)
    commands.update(further)
    for command in commands.values():
        for action in command._actions:
            if action.type is Path or str(action.metavar).startswith(PATHS):
                action.complete = shtab.FILE
            elif re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", str(action.metavar)):  # a server's option with choices
                action.choices = str(action.metavar).split("|")
    return shtab.complete(parser, shell)


def _commands(parser: argparse.ArgumentParser) -> dict[str, Any]:
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return commands.choices


EPILOG = """\
environment:
  ATTENDANT_TARGET, ATTENDANT_ROOT_CERTIFICATES, ATTENDANT_CLIENT_CERTIFICATE, ATTENDANT_CLIENT_KEY,
  ATTENDANT_SERVER_NAME, ATTENDANT_TOKEN_FILE
                     defaults of the options of the same names
  ATTENDANT_TOKEN    sent as a bearer token with every call, if there is no token file

exit status:
  0  done
  1  no answer: unavailable, overloaded, missing or wrong credentials, past the deadline, or the server failed
  2  an invalid option, an invalid source, an unknown model
"""

TRACED_CANDIDATES: Final = 3
MAX_TRACED_CANDIDATES: Final = 32

PRECISIONS: Final = ("fp32", "int8")  # The precisions that a CPU computes.


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options, with the command's coroutine function as `run`. Wrong ones end the process."""
    parser = whole_parser()
    options = _options(parser, arguments)
    parser = _commands(parser)[arguments[0]]
    if "target" in options:
        _check_connection(parser, options)
    texts = getattr(options, "texts", [])
    if "-" in texts and len(texts) > 1:
        parser.error("`-` reads the sources from standard input, so it must be the only TEXT")
    if texts == ["-"]:
        for name in ("stream", "request_id"):
            if getattr(options, name):
                parser.error(f"--{name.replace('_', '-')}: can't be used with standard input: its lines share a stream")
    elif getattr(options, "skip", 0):
        parser.error("--skip: skips lines of standard input, and TEXT is on the command line")
    if getattr(options, "stream", False) and (options.json or options.bundle is not None):
        parser.error("--stream: excludes --json and --bundle")
    if getattr(options, "links", False) and options.json:
        parser.error("--links: are printed after texts; --json with --attention has the weights")
    if texts == ["-"] and sys.stdin is None:
        parser.error("`-` reads the sources from standard input, which is closed")
    return options


def _options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options of a subcommand."""
    name, commands = arguments[0] if arguments else "", _commands(parser)
    flag = name.partition("=")[0]
    if flag.startswith("--") and not any(own.startswith(flag) for own in ("--help", "--version")):
        parser.error(f"{flag}: options follow the command, as in attendant health {flag}")
    if name and not name.startswith("-") and name not in commands:
        parser.error(f"there is no command {name!r}{suggestion(name, commands)}")
    if name in commands:
        _check_flags(commands[name], arguments[1:])
    options, rest = parser.parse_known_args(arguments)
    if rest:
        remedy = "texts follow each other, with quotation marks around several words"
        commands[name].error(f"{rest[-1]!r} is one argument too many; {remedy}")
    return options


def _check_flags(command: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Refuses arguments that argparse takes for options that the command does not have.

    Of `-hello`, Python 3.13 reads `-h`. argparse takes a number, and a text with a space, for a value.
    """
    flags, is_number = command._option_string_actions, command._negative_number_matcher.match
    for argument in takewhile("--".__ne__, arguments):
        flag = argument.partition("=")[0]
        is_value = is_number(argument) or (" " in argument and not argument.startswith("-h"))
        if flag.startswith("-") and flag != "-" and flag not in flags and not is_value:
            of_text = "; a text that begins with a dash goes after all options and `--`, a value after `=`"
            command.error(f"there is no option {flag}{suggestion(flag, flags) if flag[:2] == '--' else of_text}")


def _check_connection(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses options that exclude or need each other, and reads the token."""
    options.token = options.token_file or os.environ.get("ATTENDANT_TOKEN", "").strip()
    if not (options.token.isascii() and options.token.isprintable()):
        parser.error("ATTENDANT_TOKEN holds characters that a header can't have; printable ASCII can")
    if (options.client_certificate is None) != (options.client_key is None):
        names = set_variables("client_certificate", "client_key")
        parser.error(f"--client-certificate and --client-key need each other; one of them is missing{names}")
    if options.insecure and (
        options.tls or options.root_certificates or options.client_certificate or options.server_name
    ):
        names = set_variables("root_certificates", "client_certificate", "client_key", "server_name")
        parser.error(f"--insecure excludes --tls, certificates and --server-name{names}")
    options.tls = options.tls or (False if options.insecure else None)
    if getattr(options, "bundle", None) is not None:
        _check_bundle(parser, options)
    elif getattr(options, "precision", None) is not None:
        parser.error("--precision: chooses among a bundle's graphs, so it needs --bundle; a server has its own")


def _check_bundle(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses options of a server if a bundle is used instead."""
    if options.model or options.version:
        parser.error("--model and --model-version: choose among a server's models; with --bundle, leave them out")
    unset = {**vars(_common().parse_args([])), "request_id": ""}
    changed = [name for name, value in unset.items() if getattr(options, name) not in (value, None)]
    if changed:
        parser.error(f"--{changed[0].replace('_', '-')}: is an option for servers; with --bundle, leave it out")


def whole_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command, with its own subcommands and the names of further ones."""
    common = _common()
    parser = _Parser(prog="attendant", description="Train, export, serve and call Attendant models.")
    _version(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name, (run, fill, summary) in OWN.items():
        parents = [] if fill is _completion else [common]
        command = commands.add_parser(
            name, parents=parents, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        _version(command)
        fill(command)
        command.set_defaults(run=run)
    for name, further in FURTHER.items():
        commands.add_parser(name, help=further.summary, add_help=False)
    return parser


def _version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"attendant-client {VERSION}")


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        # `--server` was taken for `--server-name`.
        super().__init__(epilog=EPILOG, formatter_class=formatter, allow_abbrev=False, **options)
        self.register("type", Path, path_argument)

    def error(self, message: str) -> NoReturn:
        """Prints one line instead of the whole usage."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _common() -> _Parser:
    common = _Parser(add_help=False)
    connection = common.add_argument_group("connection")
    _connection(connection, "target", "HOST:PORT", _target, "the server (default: %(default)s)", DEFAULT_TARGET)
    connection.add_argument(
        "--timeout",
        metavar="S",
        type=_positive_number,
        default=DEFAULT_TIMEOUT_SECONDS,
        help="seconds for each request, retries included (default: %(default)g)",
    )
    connection.add_argument(
        "--tls", action="store_true", help="encrypt, and verify the server (default: unless it is on this machine)"
    )
    connection.add_argument(
        "--insecure", action="store_true", help="do not encrypt: anyone on the network path can read texts and token"
    )
    for name, metavar, kind, meaning in (
        ("root-certificates", "FILE", _file, "PEM, instead of the default ones; implies --tls"),
        ("client-certificate", "FILE", _file, "PEM, for a server that requires one; implies --tls"),
        ("client-key", "FILE", _file, "the key of --client-certificate, PEM"),
        ("server-name", "NAME", str, "the name in the server's certificate (default: the target's); implies --tls"),
        ("token-file", "FILE", _token, "a bearer token, sent with every call"),
    ):
        _connection(connection, name, metavar, kind, meaning)
    return common


def _connection(
    group: argparse._ArgumentGroup,
    name: str,
    metavar: str,
    kind: Callable[[str], Any],
    meaning: str,
    default: str | None = None,
) -> None:
    """Adds an option that is also a variable of the environment."""
    variable = "ATTENDANT_" + name.replace("-", "_").upper()
    from_environment = os.environ.get(variable) or None

    def convert(text: str) -> Any:
        try:
            return kind(text)
        except argparse.ArgumentTypeError as error:
            # argparse converts the default, too, and its message names only the option.
            origin = f" (from {variable})" if text is from_environment else ""
            raise argparse.ArgumentTypeError(f"{error}{origin}") from None

    group.add_argument(f"--{name}", metavar=metavar, type=convert, default=from_environment or default, help=meaning)


def _generate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "texts", metavar="TEXT", nargs="+", type=_text, help="the sources; `-` alone: each line of standard input"
    )
    command.add_argument("--tokens", action="store_true", help="a TEXT is tokens, separated by spaces")
    _model(command)
    _bundle(command)
    decoding = command.add_argument_group("decoding")
    sampling = command.add_argument_group("sampling (each of these implies --sample)")
    of_decoding = options_of(DecodingFields)
    _, sample = of_decoding.pop("sampling")
    sampling.add_argument("--sample", action="store_true", help=sample.meaning)
    for group, meanings in ((decoding, of_decoding), (sampling, options_of(Sampling))):
        for name, (kind, option) in meanings.items():
            _option(group, name, kind, option)
    output = command.add_argument_group("output")
    output.add_argument("--attention", action="store_true", help="draw the attention of the best hypothesis")
    output.add_argument(
        "--links",
        action="store_true",
        help="add, after a tab, the source token with most attention for each target token: 0-0 1-2",
    )
    _option(output, "replace_unknowns", *options_of(OutputFields)["replace_unknowns"])
    output.add_argument(
        "--trace",
        action="store_const",
        const=TRACED_CANDIDATES,
        help="draw the course of the search as a tree: its hypotheses, the tokens that it cut, and why",
    )
    output.add_argument(
        "--trace-candidates",
        metavar="N",
        dest="trace",
        type=_at_least(1, MAX_TRACED_CANDIDATES),
        help=f"like --trace, with the N most probable tokens after each hypothesis (default: {TRACED_CANDIDATES})",
    )
    output.add_argument("--json", action="store_true", help="print a complete JSON object per source")
    output.add_argument(
        "--stream", action="store_true", help="write each answer while it is decoded, one answer at a time"
    )
    _request_id(command)
    command.add_argument(
        "--skip",
        metavar="N",
        type=_at_least(0),
        default=0,
        help="skip the first N lines of standard input, e.g. those of an interrupted run (default: 0)",
    )
    output.add_argument(
        "--concurrency",
        metavar="N",
        type=_at_least(1),
        default=DEFAULT_CONCURRENCY,
        help="largest number of requests in flight (default: %(default)s)",
    )


def _model(command: argparse.ArgumentParser) -> None:
    meanings = options_of(RequestOptions)
    command.add_argument("--model", metavar="M", type=_text, default="", help=_help(meanings["model"][1]))
    meaning = _help(meanings["version"][1])
    command.add_argument("--model-version", dest="version", metavar="V", type=_text, default="", help=meaning)


def _bundle(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--bundle", metavar="BUNDLE", type=Path, help="decode with this bundle in this process instead of a server"
    )
    command.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="the precision of the bundle's graphs (default: the bundle's, if this processor computes it)",
    )


def _option(group: argparse._ArgumentGroup, name: str, kind: object, option: Option) -> None:
    """Adds an option of the API, which is None if it is left out."""
    flag, meaning = "--" + name.replace("_", "-"), _help(option)
    if kind is bool:
        # The bundle may have switched the option on, so it can be switched off too.
        action = argparse.BooleanOptionalAction if option.default == OF_BUNDLE else "store_true"
        group.add_argument(flag, action=action, default=None, help=meaning)
    elif kind in {int, int | None}:
        group.add_argument(flag, metavar="N", type=_at_least(option.least, option.most), help=meaning)
    elif kind is str:
        group.add_argument(flag, metavar="TEXT", type=_text, help=meaning)
    elif kind in {float, float | None}:
        group.add_argument(flag, metavar="X", type=_number, help=meaning)
    elif kind == Sequence[int]:
        group.add_argument(flag, metavar="POSITIONS", type=_places, help=f"{meaning}, separated by spaces")
    else:
        group.add_argument(flag, metavar="TOKENS", type=_tokens, help=f"{meaning}, separated by spaces")


def _help(option: Option) -> str:
    return f"{option.meaning} (default: {option.default})" if option.default else option.meaning


def _score(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="SOURCE", type=_text)
    command.add_argument("target_text", metavar="TARGET", type=_text)
    _model(command)
    _bundle(command)
    command.add_argument("--tokens", action="store_true", help="SOURCE and TARGET are tokens, separated by spaces")
    _request_id(command)
    command.add_argument("--no-eos", action="store_true", help="leave EOS out of the probability")
    command.add_argument("--attention", action="store_true", help="draw the attention")
    command.add_argument("--json", action="store_true", help="one JSON object")


def _request_id(command: argparse.ArgumentParser) -> None:
    meaning = "the id of the request in the server's log (default: the client makes one)"
    command.add_argument("--request-id", metavar="ID", type=_text, default="", help=meaning)


def _models(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", type=_text, help="only this model (default: all)")
    command.add_argument("--json", action="store_true", help="print a JSON object per model, including its manifest")


def _health(command: argparse.ArgumentParser) -> None:
    command.add_argument("--service", metavar="NAME", default="", help="one gRPC service (default: the whole server)")


def _completion(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


async def complete(options: argparse.Namespace) -> int:
    print(script(whole_parser(), parsers(), options.shell))
    return 0


OWN: Final[Mapping[str, tuple[Callable[..., Any], Callable[[argparse.ArgumentParser], None], str]]] = {
    "generate": (generate, _generate, "decode texts, or each line of standard input"),
    "score": (score, _score, "compute the probability of a target"),
    "models": (models, _models, "show the models of a server, their limits and measured quality"),
    "health": (health, _health, "check a server; exit status 0 if it is serving, else 1"),
    "completion": (complete, _completion, "print the completion script of a shell"),
}
"""This distribution's own subcommands: name -> function that runs it, function that adds its options, summary."""


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{value!r} is not UTF-8") from None
    return value


def _tokens(value: str) -> list[str]:
    return _text(value).split()


def _places(value: str) -> tuple[int, ...]:
    return tuple(map(_at_least(0), value.split()))


def _target(value: str) -> str:
    try:
        return with_port(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(re.sub("^target(: |=)", "", str(error))) from None


def _at_least(least: int, most: int = 2**32 - 1) -> Callable[[str], int]:
    def whole(value: str) -> int:
        if not (value.isascii() and value.isdigit() and int(value) >= least):
            raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of at least {least}")
        if int(value) > most:
            raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of at most {most}")
        return int(value)

    return whole


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number") from None


def _positive_number(value: str) -> float:
    number = _number(value)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{value!r} is not a number above 0")
    return number


def _token(path: str) -> str:
    token = _file(path).strip()
    if not token.isascii() or not token.decode("ascii").isprintable() or not token:
        raise argparse.ArgumentTypeError(f"{path!r} does not hold one line of printable ASCII")
    return token.decode("ascii")


def _file(value: str) -> bytes:
    try:
        content = Path(value).read_bytes()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{value!r} can't be read: {error.strerror}") from None
    if not content:
        raise argparse.ArgumentTypeError(f"{value!r} is empty")
    return content
