"""`python -m amata`, the same as the `amata` command."""

from amata.cli import main

if __name__ == "__main__":
    main()
