"""Kernels: ops whose inside no compiler pass looks at, and what can be known of them.

    mosaic      a TPU kernel of Pallas (``tpu_custom_call``): its grid, blocks and body
    scalars     integers that a kernel computes from its place in the grid, for all places at once
    cuts        which dims of the grid may be cut, proven from index maps and body
    cudnn_attention  a call of cuDNN's attention: batch and heads, and its configuration for a part
    work        what it computes and reads

``docs/design/kernels.md`` has the idea and the proof.
"""
