"""A program that works through its batch in micro-batches, one loop trip each.

    inline      calls become the ops that they call
    refusals    why a program cannot be cut, in the user's terms
    parts       what a micro-batch reads of a whole value
    resize      ops at the size of a micro-batch
    leaving     sums, stacks and means that the loop hands out
    rewrite     all of it: the loop

What is cut, and how, the core says (``passes/micro_batch/times.h``).
"""
