"""Shared code for the commands that prepare task folders."""

import argparse
import sys
from pathlib import Path

from fairseq_maelm.files.prepared_folder import verify_outputs
from fairseq_maelm.options import add_output, add_verify, add_vocabulary


def add_folder_arguments(parser: argparse.ArgumentParser, output: str = "new folder of the task") -> None:
    """Declare ``--vocabulary``, ``--output`` with the help text ``output``, and ``--verify``."""
    add_vocabulary(parser, required=True)
    add_output(parser, output)
    add_verify(parser)


def end_preparation(folder: Path, verify: bool) -> None:
    """Print a folder's path; with ``verify``, check the folder's files first."""
    if verify:
        verify_outputs(folder)
    sys.stdout.write(f"{folder}\n")
