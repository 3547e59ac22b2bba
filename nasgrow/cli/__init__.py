"""The command line: each command parses its arguments, calls the package and prints the result."""
