"""Kernels: ops whose inside no compiler pass looks at, and what can be known of them.

    mosaic           a TPU kernel of Pallas (``tpu_custom_call``): its grid, blocks and body
    scalars          integers that it computes from its place in the grid, for all places at once
    cuts             which dims of the grid may be cut, proven from index maps and body
    tables           contents of the tables that it looks places up in
    work             what it computes and reads
    cudnn_attention  a library's attention: batch and heads, and the call that a part is
    calls            calls of ``autoshard.kernel``

``docs/design/kernels.md`` has the idea and the proof.
"""
