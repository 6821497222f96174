"""Task kinds: reading, encoding, network, loss, decoding and metrics of each.

One module a kind, but for `texts`, which has classification and regression. The base class is in
`cloze.model.tasks.task`, the table in `cloze.model.tasks.table`.
"""
