"""Engines: they run forward, backward and update, and spread training over ranks.

An engine is one file and a line in `ENGINES` (spec/engine_choice.py):

  torch      one process, or data parallel with full replicas: the fastest if everything fits
  fsdp       torch's fully sharded data parallel, as ZeRO stages 2 and 3
  deepspeed  ZeRO stages 1 to 3: optimizer state, gradients and weights are sharded

DeepSpeed, which takes seconds to import, is imported by its engine only.
"""
