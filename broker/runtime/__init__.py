"""What the compiled parts run on: the turn of the loop, timers, buffers, workers, file calls.

Start with `turn` (what one pass of the event loop does) and `interfaces` (the base classes through
which parts call each other). It knows neither messages nor protocols. It imports `base`; everything
above may import it.
"""
