"""The modules whose functions a running fairseq-train calls, where fairseq can be heard and answered."""

import sys
from typing import Any, List


def training_programs() -> List[Any]:
    """The module of fairseq-train, and the script itself when it was started by its path; none in other programs."""
    modules = [sys.modules.get("fairseq_cli.train"), sys.modules.get("__main__")]
    return [
        module for module in modules if hasattr(module, "should_stop_early") and hasattr(module, "validate_and_save")
    ]
