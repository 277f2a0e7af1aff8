"""`python -m trainer`, and so `torchrun -m trainer run …`: the same command as `trainer`."""

from trainer.cli import main

if __name__ == "__main__":
    main(prog_name="trainer")
