"""`python -m halfpint.cli`."""

from halfpint.cli import main

if __name__ == "__main__":
    main()
