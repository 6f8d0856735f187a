"""Classification and regression of sentences, by fairseq's own task sentence_prediction."""
