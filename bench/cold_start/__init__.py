"""`bench cold-start`: from a stock start to this worker's, one step at a time, on whatever machine this is.

Clock: starts when the process is started (the stock-order script on the first rung, start.sh on the others); stops when
the queue has read the first chunk of a streamed chat that waited there from the beginning. Every run is a new container
as far as the worker can tell: its home, its copies and its kernels are gone. Rungs are interleaved, run by run. The
speeds are those of a second, longer job of the same run, by the server's own count.
"""
