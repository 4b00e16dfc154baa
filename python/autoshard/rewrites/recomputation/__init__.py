"""Which values to compute again, and the rewrites that do it.

``block`` reads the ops of one block with lifetimes, ``plan_costs`` has what they cost, ``choice``
finds what to drop, the core says which ops run again and where (passes/recomputation/clones.h),
when values are on the host (fetches.h) and what that does to memory and step (effects.h),
``straight`` rewrites the module. For what one loop stacks and another one reads, ``loops`` finds
the stacks, ``stack_choice`` says which of them to drop and ``stack_rewrite`` drops them;
``stacker`` writes and reads stacks, ``loop_rebuild`` changes what a loop carries. ``marks`` and
``kept`` do what the user's switches say.
"""
