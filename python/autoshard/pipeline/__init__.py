"""A step on the stages of a pipeline: what runs where, in which order, and the run itself.

options              what a user asks for
modules              a module of its own for each task
layouts              how what only one stage sees lies in memory
donations            which arguments of tasks give their memory to results
task_prices          seconds and bytes of tasks before they are written
order                seconds of tasks; the schedule by which micro-batches go through the stages
flights              bytes that stages keep of micro-batches on their way
instructions         one list for a step: run, send
row_moves            rows of arrays that lie elsewhere between steps
transfers            values between stages, within a process and between processes
running              tasks as compiled programs; the list, carried out
staged_verification  tasks beside what a compiler makes of them
mpmd/                the list in the dialect of Shardy's pipelines
"""
