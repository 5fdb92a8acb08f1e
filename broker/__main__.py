"""`python -m broker`: the command line."""

from broker.cli import main

if __name__ == "__main__":
    main(prog_name="twinwire")
