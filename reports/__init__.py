"""The answer, shown: one file for each form of output."""
