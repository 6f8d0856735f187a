"""The criterion ``maelm``."""
