"""`python -m duewheel` is the command `duewheel`."""

from duewheel.cli.main import main

if __name__ == "__main__":
    main()
