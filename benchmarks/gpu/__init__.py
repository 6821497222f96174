"""One command for a machine with a GPU: equality checks, then speeds.

    checks.py    checks: kernels, layouts, compiled steps, checkpoints, ZeRO, families
    rows.py      the rows, in order
    speed.py     rows with speeds: the whole loop, the bare step, transformers
    place.py     where rows run, and the data that they read
    child.py     runs rows in a process of its own
    parent.py    starts children, keeps to the time limit, survives a child's death
    table.py     the Markdown
    levers.py    another command: the GPU levers beside today's step, one table that resumes
    lever_rows.py, lever_table.py, flex.py, stand_ins.py   its rows, its table, a candidate, a CPU's

It needs `cloze.model` and `cloze.core` alone; infra/gpu/README.md lists the wheels.
"""
