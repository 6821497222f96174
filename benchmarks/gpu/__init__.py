"""One command for a machine with a GPU: what must be equal there, then how fast it is. `python -m
benchmarks.gpu --help`.

    checks.py    rows that pass or fail: kernels, layouts, compiled steps, checkpoints, ZeRO,
    families speed.py     rows with figures: the whole loop, the bare step, transformers, on ragged
    rows place.py     where rows run, and the data that they read child.py     runs rows in a
    process of its own parent.py    hands them out, keeps to its minutes, survives what ends a child
    table.py     the Markdown

It needs the model room and the pipeline's core alone, on Python 3.11 or later: infra/gpu/README.md
says which wheels to bring.
"""
