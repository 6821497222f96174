"""Engines: who runs a Beam pipeline. The jobs are the same on all of them, and so are their bytes.

    local         Beam's own runner, in this process or with worker processes of ours
    flink         Beam's Flink runner: embedded, started and ended with the stage, or a cluster that is there
    beam_runner   any other runner of Beam's, by its name and with Beam's own options

`fan_out` spreads a list of work units over the workers of an engine; `table` says which engine a build asks for. `pool`, `beam_worker`
and `monitored` are the worker processes of the first two, `java` and `supervisor` the job server of the second.
"""
