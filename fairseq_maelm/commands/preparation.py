"""Shared code for the commands that prepare task folders."""

import argparse

from fairseq_maelm.options import add_output, add_vocabulary


def add_folder_arguments(parser: argparse.ArgumentParser, output: str = "new folder of the task") -> None:
    """Declare ``--vocabulary`` and ``--output`` with the help text ``output``."""
    add_vocabulary(parser, required=True)
    add_output(parser, output)
