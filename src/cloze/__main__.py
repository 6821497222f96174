"""`python -m cloze`: the command line."""

from cloze.flows.cli import entry

if __name__ == "__main__":
    entry()
