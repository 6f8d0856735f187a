"""The criterions, one file for each; importing one registers it with fairseq."""
