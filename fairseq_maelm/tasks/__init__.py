"""The pretraining task. fairseq imports ``tasks/`` inside --user-dir; that import registers the whole package."""

from fairseq_maelm.registration import register_in_program

register_in_program()
