"""Runner backends: they run Beam pipelines, with the same jobs and the same output bytes.

    local         one worker is this process; several are ours, run by Beam's own runner
    flink         Beam's Flink runner: embedded, for the duration of the stage, or a cluster
    beam_runner   any other Beam runner, by name and with Beam's own options

`fan_out` spreads work units over the workers of a backend, and `shuffle` joins documents that share
a value. `base` maps names to backends. `pool` and `beam_worker` provide the worker processes of the
first two backends, and `flink_supervisor` guards the job server of the second.
"""
