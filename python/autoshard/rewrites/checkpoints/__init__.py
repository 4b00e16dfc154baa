"""Undo what ``jax.checkpoint`` left in a module: the inverse of ``recomputation``.

``host`` takes back what a policy sends to the host, ``straight`` joins ops of one block that are
computed twice, ``twins`` finds what two loops compute both, ``cut`` chooses what the first one
stacks of it, ``scans`` rewrites both, ``still`` says what is left; ``undo`` does all of it.
"""
