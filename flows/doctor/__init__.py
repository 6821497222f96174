"""`cloze doctor`: checks this machine, the servers and the runs, and repairs what it can.

A check is a function that yields findings. A finding that is not ok says what to do. If Cloze can
repair it by changing only its own files and processes, the finding has a repair function, which
`--fix` calls. The check then runs again: a finding counts as fixed if it is gone.
"""
