"""What ``opt`` runs in its child process.

command                 all of it
settings                the command line, read
help                    --help, --list-passes, --version
files                   modules of the input, files that are written
transform               passes on one module
messages                errors and warnings, with the line of the input
expected_diagnostics    --verify-diagnostics
timing                  --mlir-timing
"""
