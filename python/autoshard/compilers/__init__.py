"""What compilers do with a program, by compiler and release, each answer with its source."""
