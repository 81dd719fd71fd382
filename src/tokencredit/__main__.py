"""`python -m tokencredit` is the `tokencredit` command."""

from tokencredit.cli import main

main()
