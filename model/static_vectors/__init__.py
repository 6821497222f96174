"""Static word vectors of a corpus: word2vec, fastText and GloVe. Read `stage.py` first.

A corpus and a vocabulary of words enter; a checkpoint of the family `static` leaves, with the same
vectors in word2vec's binary format.
"""
