"""Private training on one machine: a plan, batches, bounded gradients, and a trainer over the same door as a run.

In order: `training_plan` settles noise (by `calibrated` of `fedsw.privacy.plan`) and draws, `objective` bounds a
gradient, `trainer` releases it and steps, `private` is a loop of Opacus' shape; `sketching` is a sketch's release.
`_begun` refuses to resume a folder with other settings.
"""
