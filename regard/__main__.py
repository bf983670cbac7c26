"""`python -m regard`: the command line without the script on the path."""

from regard.cli.main import main

if __name__ == "__main__":
    main()
