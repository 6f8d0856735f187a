"""The pretraining task. fairseq imports this folder of its --user-dir, and with it all that there is to register."""

from fairseq_maelm.registration import register

register()
