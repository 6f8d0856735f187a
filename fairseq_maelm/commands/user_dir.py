"""The command ``maelm user-dir``."""

import argparse
import sys

from fairseq_maelm.options import USER_DIR


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, which takes no arguments."""
    parser.description = "Writes the folder to give to fairseq's commands as --user-dir."


def run(args: argparse.Namespace) -> None:
    """Print the path of the installed package."""
    sys.stdout.write(f"{USER_DIR}\n")
