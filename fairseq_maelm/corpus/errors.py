"""The one exception that corpus preparation raises for anything its user can put right."""


class CorpusError(ValueError):
    """A setting, an input file or an output folder is not as it must be; the message says which and what to do."""
