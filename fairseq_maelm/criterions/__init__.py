"""The criterions, one in each file; importing a file registers its criterion with fairseq."""
