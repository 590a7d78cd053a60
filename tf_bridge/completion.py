"""`dali-tf completion`: what a shell needs to complete commands, flags, their values and file names."""

import argparse

import shtab

from tf_bridge import cli
from tf_bridge.cli_arguments import PRESETS
from tf_bridge.cli_parser import commands

_FILES, _FOLDERS = ("data", "validation", "output"), ("data_dir",)


def run(arguments: argparse.Namespace) -> int:
    """Print the script; returns the exit code."""
    parser = cli.parser()
    for command in commands(parser).values():
        for action in command._actions:
            if action.dest in _FILES + _FOLDERS:
                action.complete = shtab.FILE if action.dest in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.dest == "recipe":
                action.choices = PRESETS  # to complete; a recipe of one's own is no mistake
    print(shtab.complete(parser, arguments.shell))
    return 0
