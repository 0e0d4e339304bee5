"""The `fedsw` command: one file for each verb. What a command needs is imported when it runs."""
