"""The model ``maelm``, its sizes and its hub interface."""
