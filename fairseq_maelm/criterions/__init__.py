"""The criterions ``maelm`` and ``maelm_prompt``."""
