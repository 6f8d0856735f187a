"""Question answering on SQuAD 1.1 and 2.0: reading, windows, spans, scoring, and answers to users' questions."""
