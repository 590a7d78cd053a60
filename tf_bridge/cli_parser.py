"""The parser of `dali-tf`: argparse, whose mistakes are told in this project's voice, in one line."""

import argparse
import difflib
import platform
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

_KINDS = {"int": "an int", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """Errors say the rule, then what came, then the way out; no usage in front of them."""

    def parse_args(  # type: ignore[override]  # argparse's overloads differ by what nobody passes here
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse does; an argument that a command does not have is told with the one that was meant."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self.command(arguments.command)
            nearest = _nearest(unknown[0].split("=")[0], parser._option_string_actions)
            parser.error(f"`{parser.prog}` takes no `{unknown[0]}`.{nearest}")
        return arguments

    def command(self, name: str) -> "Parser":
        """The parser of a command."""
        return commands(self)[name]

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; exit code 2."""
        message = re.sub(r"^argument (\S+?)(/\S+)?: ", lambda match: f"`{match[1]}` ", message)
        message = re.sub(r"invalid (\w+) value: ", lambda m: f"must be {_KINDS.get(m[1], m[1])}. Received: ", message)
        message = re.sub(r"ambiguous option: (\S+) could match", r"`\1` could be", message)
        message = message.replace("expected one argument", "needs a value")
        message = message.replace("the following arguments are required:", f"`{self.prog}` needs")
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"dali-tf: error: {message}{end} See `{self.prog} --help`.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            rule = f"must be {', '.join(names[:-1])} or {names[-1]}"
            raise argparse.ArgumentError(action, f"{rule}. Received: {value!r}.{_nearest(str(value), names)}")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False):
            return action.help
        return super()._get_help_string(action)


def _nearest(word: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(words), 1)
    return f" Did you mean `{close[0]}`?" if close else ""


def in_flags(message: str, parser: argparse.ArgumentParser) -> str:
    """An error of the Python functions with the command's flags: `on_error="skip"` is `--on-error=skip` here."""
    flags = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}
    names = "|".join(flags)
    message = re.sub(rf"`({names})`", lambda match: f"`{flags[match[1]]}`", message)
    given = rf'(?<![\w/.-])({names})=("?)([\w.]+)\2'  # not as a part of a path
    return re.sub(given, lambda match: f"{flags[match[1]]}={match[3]}", message)


def commands(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """The parser of each command by its name."""
    (action,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


class Version(argparse.Action):
    """Prints the versions that matter for a bug report, without loading what has them."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        """Print, and end."""
        others = (f"{name} {_version(name)}" for name in ("tensorflow", "nvidia-dali-cuda120"))
        print(f"dali-tf {_version('dali-tf-bridge')} (Python {platform.python_version()}, {', '.join(others)})")
        parser.exit()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
