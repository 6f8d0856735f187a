"""The sub-command ``maelm user-dir``."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares that ``maelm user-dir`` takes no arguments."""
    parser.description = "Writes the folder to give to fairseq's commands as --user-dir."


def run(args: argparse.Namespace) -> None:
    """Writes the folder of the installed package to standard output."""
    sys.stdout.write(f"{Path(__file__).resolve().parent}\n")
