"""`python -m twinwire` is the command `twinwire`."""

from broker.cli import entry

if __name__ == "__main__":
    entry()
