"""The pretraining task. fairseq imports ``tasks/`` inside --user-dir; that import registers the whole package."""

from fairseq_maelm.registration import is_registered, register

if not is_registered():
    register()
