"""The plan of a corpus whose references are too many for one process: by the engine's own shuffle, with the same result.

    screen      who shares a key, an exact hash or a band with anybody: few, as a rule (`screen`)
                so few that one process can compare them: it does, as it does with all of a small corpus
    else        these few in the order of ranks, cut into ranges (`ranges`); doubles of ids, then exact duplicates (`firsts`); then near
                ones, round by round (`near`), or the components of shared bands (`components`); whose rest may end in one process again
                (`undecided`); what stays for whom, told to the blocks that they came from (`origins`)
    figures     what stays of each block (`figures`), in which shard (`places`)

What travels is packed arrays under small numbers. What is alike is brought together once a block, never once a document, and a group's
members are compared with its first one alone: so a bucket gets at most one record a block of a value that a million documents share.
"""
