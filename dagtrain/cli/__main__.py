"""`python -m dagtrain.cli`."""

from dagtrain.cli import main

main()
