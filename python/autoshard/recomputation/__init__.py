"""Which values to compute again, and the rewrites that do it.

``block`` reads the ops of one block with lifetimes and costs, ``choice`` finds what to drop,
``clones`` says which ops run again and where, ``straight`` and ``loops`` rewrite the module.
"""
