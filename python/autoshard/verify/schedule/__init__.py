"""The schedule of a compiled program, simulated (docs/results/step_estimate.md, "Schedule").

lines       what a device does line by line: compute, begin a transfer, wait for one, repeat
origins     which asynchronous instruction a value comes from, also around a loop
simulate    runs the lines against one stream of compute and one per kind of link
schedule    what came out: seconds, transfers with what of them is exposed, events
trace       the events as a file for Perfetto
"""
