"""``python -m fairseq_maelm`` is the command ``maelm``."""

from fairseq_maelm.cli import command

command()
