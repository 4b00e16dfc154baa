"""When each stage of a pipeline works on which micro-batch.

    work            what there is to do for every micro-batch, on which stage
    list_scheduler  one schedule from a rule: what comes first, how many micro-batches in flight
    rules           GPipe, 1F1B, interleaved, zero bubble; the best of them
    gantt           a schedule as text

Pure functions on plain records: seconds may be of any number type, and of whole numbers all that
is computed is exact.
"""
