"""The shipped tasks, a file for each: its facts, head, loss, measures and figures. The file's name is the task's."""
