"""The checks of `fedsw audit RUN`, a file for each subject; nothing here computes with what it checks."""
