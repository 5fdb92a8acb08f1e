"""The compiled load generator of `twinwire bench`.

Start with `scenarios` (what a run does) and `loadgen` (its loop). It imports the wire formats of
the protocols; the command line and the benchmarks import it. `nats`, `nsq` and `stan` repeat some
short loops, because each runs over a C array of its own struct, which a base class cannot index.
"""
