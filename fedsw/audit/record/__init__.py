"""The checks of `fedsw audit RUN`, a file for each subject.

They compute apart from what they check, and read the folder apart from what wrote it (`fedsw.runs.files`), but for
three things: the replay, which is fedsw's own accountant on purpose; the shape of model and data, from
`fedsw.tasks.problem`; and the public directions of an attempt, where their spread is not known in advance.
"""
