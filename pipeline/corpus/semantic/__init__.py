"""Documents that say the same in other words, found by vectors of a checkpoint (SemDeDup)."""
