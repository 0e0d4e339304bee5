"""Pages that people open: a run or several in one file of HTML, and a run that goes on."""
