"""One module for each sub-command of ``maelm``, with its arguments and its run; ``cli.py`` has the table."""
