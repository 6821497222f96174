"""Engines: who runs a Beam pipeline. The jobs are the same on all of them, and so are their bytes.

    local   Beam's own runner, in this process or with worker processes of ours
    flink   Beam's Flink runner: embedded, started and ended with the stage, or a cluster that is there
    other   whatever runner of Beam's is named, with Beam's own options

`pipeline.engines.base.open_engine` chooses one; nothing of Beam or Java is touched before a pipeline is to run.
"""
