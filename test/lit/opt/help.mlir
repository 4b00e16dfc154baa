// RUN: autoshard-opt --help | filecheck %s
// RUN: autoshard-opt --list-passes | filecheck %s --check-prefix=LIST
// RUN: autoshard-opt --version | filecheck %s --check-prefix=VERSION
// RUN: %python -m autoshard.cli.opt --version | filecheck %s --check-prefix=VERSION
// RUN: %python -c "import autoshard.cli.opt, sys; assert 'jax' not in sys.modules, 'starting is slow'"

// The command explains itself: its options, our passes with options, and jaxlib's.
// CHECK:        usage: autoshard-opt [options] [--PASS[='option=value ...'] ...] [FILE]
// CHECK:        --emit {text,generic,bytecode}
// CHECK:        autoshard's passes:
// CHECK:        --autoshard-print-plan
// CHECK:        --sdy-populate-op-sharding-rules
// CHECK:        examples:
// LIST:         autoshard's passes:
// LIST:         --autoshard-print-plan
// LIST:         jaxlib's passes (jaxlib {{[0-9.]+}}):
// LIST:         --sdy-insert-explicit-reshards
// LIST-NEXT:        Insert the reshards that make every op's operands fit.
// LIST-NEXT:        enable-full-version=false
// LIST:         --canonicalize
// VERSION:      {{^autoshard [0-9.]+, jaxlib [0-9.]+$}}
module {}
