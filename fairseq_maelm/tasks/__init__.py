"""The pretraining task. fairseq imports this folder of its --user-dir, which registers the whole package."""

from fairseq_maelm.registration import register

register()
