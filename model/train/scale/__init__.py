"""What a training takes before any of it runs: on which hardware, in how much memory and time, and how long it stays up. No torch.

hardware     a table of GPUs, and this machine
network      bytes that the ranks exchange, and the seconds that takes
plan         memory, time, energy and sizes of a pretraining, and the choice among the ways of running it
goodput      interruptions, and how often to save
"""
