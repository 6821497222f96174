"""One trainer a kind of vocabulary, each the same bytes from every process."""
