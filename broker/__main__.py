"""`python -m broker`: the command line."""

from broker.cli import entry

if __name__ == "__main__":
    entry()
