"""``python -m nasgrow``."""

from nasgrow.cli.main import main

main()
