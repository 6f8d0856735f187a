"""Rules that hold for the source text of the whole project, each checked by a sweep that counts its files."""
