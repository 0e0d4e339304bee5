"""Pages that people open: a run or several in one file of HTML.

`run_page` makes a page of whole views, `fedsw.runs.write` writes it; `document` is for pages of other things.
"""
