"""Files of any content: atomic writing, lines, labeled words, folders with a manifest, optional libraries."""
