"""`python -m app` is `antiphon`."""

from app.cli import main

if __name__ == "__main__":
    main()
