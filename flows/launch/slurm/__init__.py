"""Launchers for Slurm: `slurm` submits a batch job, `srun` starts agents inside a job.

`launcher.py` writes and submits the batch script. `job.py` is the coordinator that the script
becomes. `cli.py` calls Slurm's commands, and follows the job from outside.
"""
