"""`python -m comt_cli` and the `comt` command."""

from comt_cli.app import main

if __name__ == "__main__":
    main()
