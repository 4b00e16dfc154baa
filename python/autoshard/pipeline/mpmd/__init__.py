"""A planned pipeline in the dialect of Shardy's pipelines, MPMD.

export_mpmd  the pass
write        main: fragments on the meshes of stages, in the order of the schedule, and transfers
functions    what fragments call, and fragments with their ops in place
labels       what a fragment says of the task that it is
"""
