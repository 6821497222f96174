"""Domain: a checkpoint trained further on the texts of a domain, before and after."""
