"""One module for each sub-command of ``maelm``, which declares its arguments and runs it; ``cli.py`` lists them."""
