"""Before BERT: static word vectors, and vocabularies of whole words."""
