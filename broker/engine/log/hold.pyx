# cython: language_level=3
"""Holding a new log back until all its cursors are there.

What is appended while a log is held is stored and acknowledged, and stays with the log: each cursor
made in that time begins in front of it. Unlike a pause it is over when the process ends.
"""
from broker.engine.log.log cimport Log


def hold(Log log):
    """Give nothing to cursors until `release`."""
    log.held = True


def release(Log log):
    """Give to the cursors what has gathered."""
    if not log.held:
        return
    log.held = False
    if log.deleted or log.paused or not log.cursors:
        return
    log.advance()
    log.touch()
    log.wake_cursors()
